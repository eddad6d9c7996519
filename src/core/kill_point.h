// Named places where a test can have the process killed, to prove that whatever is on disk at that
// moment is usable. Present in every build: the code that is tested is the code that ships.
#pragma once

#include <string_view>

namespace snug {

// Raises SIGKILL where SNUG_TEST_KILL_POINT asks for it: "name" at the first passage, "name:3" at
// the third, "any:7" at the seventh passage of any point (a test counts up until the process
// survives). Otherwise one getenv, so it belongs beside system calls, not in loops over elements.
void kill_point(std::string_view name);

}  // namespace snug

"""Turns a CUDA source or header into C++ for the emulated GPU: launches become calls, and shared memory whose size a
launch gives becomes a pointer. The rest of CUDA C++ is what device.h makes of it.

    translate.py FILE OUT
"""

import re
import sys


def closing(text, at, opening, end):
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == opening) - (text[i] == end)
        if depth == 0:
            return i + 1
    raise ValueError(f"no {end} for the {opening} at {at}")


def kernel_before(text, at):
    """Where the name of the kernel begins whose launch's <<< is at `at`, with its template arguments."""
    i = at
    while text[i - 1].isspace():
        i -= 1
    if text[i - 1] == ">":
        depth = 0
        while True:
            i -= 1
            depth += (text[i] == ">") - (text[i] == "<")
            if depth == 0:
                break
    while re.match(r"[\w:]", text[i - 1]):
        i -= 1
    return i


def launches_as_calls(text):
    while (at := text.find("<<<")) >= 0:
        begin = kernel_before(text, at)
        end = text.index(">>>", at)
        arguments = text.index("(", end)
        assert not text[end + 3 : arguments].strip(), text[end : arguments + 1]
        behind = closing(text, arguments, "(", ")")
        kernel = text[begin:at].strip()
        inside = text[arguments + 1 : behind - 1].strip()
        call = (
            f"::emulated::LaunchOn({text[at + 3:end]}).start("
            f"[=](const auto&... given) {{ {kernel}(given...); }}{', ' if inside else ''}{inside})"
        )
        lost_lines = text.count("\n", begin, behind) - call.count("\n")
        text = text[:begin] + call + "\n" * lost_lines + text[behind:]
    return text


def shared_as_pointers(text):
    return re.sub(
        r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];",
        r"\1* const \2 = reinterpret_cast<\1*>(::emulated::dynamic_shared());",
        text,
    )


def main():
    source, out = sys.argv[1:]
    with open(source) as file:
        text = file.read()
    # Lines stay where they are.
    text = shared_as_pointers(launches_as_calls(text))
    with open(out, "w") as file:
        file.write(f'#include "emulated_gpu/device.h"\n#line 1 "{source}"\n{text}')


main()

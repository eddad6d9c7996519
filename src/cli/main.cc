#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/usage_error.h"
#include "core/error.h"
#include "core/process_memory.h"
#include "core/progress.h"
#include "core/threads.h"

namespace snug {
namespace {

int g_exit_code = 0;

int report(const Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  if (!error.hint().empty()) std::fprintf(stderr, "  %s\n", error.hint().c_str());
  return int(error.kind());
}

// CLI11 wraps or clamps whole numbers that have no room in 64 bits, and takes -1 for the largest of
// those without a sign.
std::string wrapped_number(const std::string& text, bool has_sign) {
  errno = 0;
  if (has_sign) {
    std::strtoll(text.c_str(), nullptr, 0);
  } else {
    std::strtoull(text.c_str(), nullptr, 0);
  }
  if (errno == ERANGE) return text + " does not fit into 64 bits";
  if (!has_sign && text.find('-') != std::string::npos) return text + " is less than 0";
  return {};
}

void refuse_wrapped_numbers(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name();
    const bool has_sign = type.starts_with("INT");
    if (!has_sign && !type.starts_with("UINT")) continue;
    option->check([has_sign](const std::string& text) { return wrapped_number(text, has_sign); });
  }
}

int run(int argc, char** argv) {
  CLI::App app("snug fine-tunes transformers inside a memory budget that you state.", "snug");
  app.set_help_flag("-h,--help", "this text");
  app.set_version_flag("--version", SNUG_VERSION, "which snug this is");
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpFormatter>());
  // A flag given twice counts as given last, as in the scripts whose flags people paste.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_training_commands(app);
  add_inference_commands(app);
  add_text_commands(app);
  add_model_commands(app);
  for (CLI::App* command : app.get_subcommands({})) {
    command->group("Commands");
    refuse_wrapped_numbers(*command);
  }
  app.footer(
      "snug COMMAND --help explains the flags of a command; --learning_rate means --learning-rate, "
      "as everywhere.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help and version
    return report(usage_error(app, error));
  } catch (const Error& error) {
    return report(error);
  } catch (const std::bad_alloc&) {
    return report(Error(ErrorKind::kBudget, "the system gives no more memory"));
  } catch (const std::exception& error) {
    return report(Error(ErrorKind::kInput, error.what()));
  }
  if (std::fflush(stdout) != 0) {
    return report(Error(ErrorKind::kStorage, "cannot write to standard output"));
  }
  return g_exit_code;
}

}  // namespace

void set_exit_code(int code) { g_exit_code = code; }

}  // namespace snug

int main(int argc, char** argv) {
  snug::sleep_at_barriers(argv);
  // A closed pipe and a limit on the size of files are errors of the write, not the end of a
  // training run.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  snug::settle_allocator();
  const int code = snug::run(argc, argv);
#ifdef SNUG_WITH_CUDA
  // cuBLAS would clean up after itself, for which it touches memory that no plan has counted.
  std::fflush(nullptr);
  std::_Exit(code);
#else
  return code;
#endif
}

// snug as a library: label the texts given on the command line with a trained model.
#include <snug/snug.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MODEL-FOLDER TEXT...\n", argv[0]);
    return 2;
  }
  try {
    for (int i = 2; i < argc; ++i) {
      snug::InferenceOptions options;
      options.model = argv[1];
      options.text = argv[i];
      snug::predict(options, [&](const snug::Prediction& p) {
        std::printf("%s\t%.3f\t%s\n", p.label.c_str(), p.score, argv[i]);
      });
    }
  } catch (const snug::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return int(error.kind());
  }
}

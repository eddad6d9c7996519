// What of a model is trained: all of it, some of it, or small adapters beside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/parameters.h"

namespace snug {

// Low-rank adapters (Hu et al. 2021): a frozen layer's product x wᵀ gets alpha / rank * dropout(x)
// aᵀ bᵀ added, and only a [rank, in] and b [out, rank] are trained.
struct LoraSpec {
  int64_t rank = 0;  // 0: no adapters
  double alpha = 8;
  double dropout = 0;
  std::vector<std::string>
      targets;  // last parts of the layers' names in files, as PEFT takes them; empty: the family's

  double scale() const { return alpha / double(rank); }
};

struct Tuning {
  std::vector<std::string> freeze;  // see freeze()
  LoraSpec lora;
  bool quantize = false;  // matrices that are not trained are int8; see choose_quantized()
};

// Marks parameters as not trained. Each entry is one of
//   embeddings            tables of words, positions and types, and their norm
//   layers.N, layers.A-B  whole layers; encoder.N and h.N mean the same
//   all-but-head          everything but the head of the task
//   a name or a pattern   with * for any text, of the tensors in files or their beginnings:
//   *.attention.*, pooler
// Errors (kUsage) say what there is: an entry that matches nothing, and a model that has nothing
// left to train.
void freeze(ParameterTable& parameters, const std::vector<std::string>& entries);

struct ModelConfig;

// Marks parameters that are int8 in memory: all matrices that can be where the files hold them so,
// and those that are not trained where that is asked for. There being none of these is an error
// (kUsage).
void choose_quantized(ParameterTable& parameters, const ModelConfig& config, const Tuning& tuning);

}  // namespace snug

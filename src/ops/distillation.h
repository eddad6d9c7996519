// What a student learns from a teacher beside the labels (Hinton, Vinyals and Dean 2015). With the
// student's logits s, the teacher's logits t and the temperature T, the loss of a target is
//   (1 - alpha) * cross-entropy(s) + alpha * T² * KL(softmax(t / T) || softmax(s / T))
// and its gradient by s
//   (1 - alpha) * (softmax(s) - onehot) + alpha * T * (softmax(s / T) - softmax(t / T)).
// T² keeps the size of the second part's gradient when the temperature changes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace snug {

struct Distillation {
  float temperature = 2.0f;
  float alpha = 0.5f;  // the teacher's share
};

// One target's logits over the vocabulary, for the CPU kernel. Biases are not yet added; either may
// be null.
struct DistilledRow {
  float* logits;
  const float* bias;
  float* teacher;
  const float* teacher_bias;
  size_t vocabulary;
  int32_t target;
};

}  // namespace snug

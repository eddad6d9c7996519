#include "optim/adafactor.h"

#include "optim/optim_test_util.h"

namespace snug {
namespace {

using Doubles = std::vector<double>;

// The formulas of adafactor.h in fp64; rows is empty for a vector.
void reference(Doubles& w, const std::vector<float>& g, Doubles& rows, Doubles& columns,
               const OptimizerStep& s) {
  const size_t n = columns.size(), m = rows.empty() ? 1 : rows.size();
  const double b = 1.0 - std::pow(double(s.step), -0.8);
  const auto square = [&](size_t i) {
    return std::pow(double(g[i]) * s.gradient_scale, 2.0) + 1e-30;
  };
  Doubles u(m * n);
  if (rows.empty()) {
    for (size_t j = 0; j < n; ++j) columns[j] = b * columns[j] + (1.0 - b) * square(j);
    for (size_t j = 0; j < n; ++j) u[j] = g[j] * s.gradient_scale / std::sqrt(columns[j]);
  } else {
    double mean = 0.0;
    for (size_t i = 0; i < m; ++i) {
      double sum = 0.0;
      for (size_t j = 0; j < n; ++j) sum += square(i * n + j);
      rows[i] = b * rows[i] + (1.0 - b) * sum / double(n);
      mean += rows[i] / double(m);
    }
    for (size_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (size_t i = 0; i < m; ++i) sum += square(i * n + j);
      columns[j] = b * columns[j] + (1.0 - b) * sum / double(m);
    }
    for (size_t i = 0; i < m * n; ++i) {
      u[i] = g[i] * s.gradient_scale / std::sqrt(rows[i / n] / mean * columns[i % n]);
    }
  }
  double squares = 0.0;
  for (double x : u) squares += x * x / double(u.size());
  for (size_t i = 0; i < w.size(); ++i) {
    w[i] = w[i] * (1.0 - s.learning_rate * s.weight_decay) -
           s.learning_rate * u[i] / std::max(1.0, std::sqrt(squares));
  }
}

void step_all(std::vector<float>& w, const std::vector<float>& g, std::vector<float>& rows,
              std::vector<float>& columns, const OptimizerStep& s) {
  if (rows.empty()) return adafactor_vector(w, g, columns, s);
  adafactor_matrix(w, g, rows, columns, s);
}

TEST(Adafactor, MatchesReference) {
  struct Shape {
    size_t rows, cols;
  };
  for (const auto& [rows, cols] : {Shape{0, 1},
                                   {0, 37},
                                   {0, 3072},
                                   {1, 1},
                                   {1, 7},
                                   {5, 1},
                                   {3, 63},
                                   {2, 768},
                                   {65, 64},
                                   {257, 129},
                                   {300, 1025}}) {
    const size_t size = std::max<size_t>(1, rows) * cols;
    std::vector<float> w = normals(size, 1), row(rows), column(cols);
    Doubles w_expected(w.begin(), w.end()), row_expected(rows), column_expected(cols);
    for (int64_t step = 1; step <= 3; ++step) {
      // Gradients shrink, so that updates of later steps are below the clip.
      const std::vector<float> g = normals(size, uint64_t(step) + 10, 0.1f / float(step * step));
      const OptimizerStep s = {
          .learning_rate = 1e-2, .weight_decay = 0.1, .step = step, .gradient_scale = 0.7};
      step_all(w, g, row, column, s);
      reference(w_expected, g, row_expected, column_expected, s);
    }
    for (size_t i = 0; i < rows; ++i) {
      ASSERT_NEAR(row[i], row_expected[i], 4.0 * kEps * row_expected[i]);
    }
    for (size_t i = 0; i < cols; ++i) {
      ASSERT_NEAR(column[i], column_expected[i], 4.0 * kEps * column_expected[i]);
    }
    // Each step rounds a weight below 8 three times; its update, about 1e-2 times |g| over their
    // mean, a few times more.
    for (size_t i = 0; i < size; ++i) {
      ASSERT_NEAR(w[i], w_expected[i], 3.0 * kEps * (3.0 * std::abs(w_expected[i]) + 1.0))
          << i << " of " << rows << " x " << cols;
    }
  }
}

// transformers.optimization.Adafactor: tests/golden/make_optimizers.py.
TEST(Adafactor, MatchesTransformers) {
  const std::vector<float> matrix = {0.892427802f,  0.915150106f,  0.185528606f,  -0.753060102f,
                                     -0.873630285f, -0.478216231f, 0.641820908f,  1.03270364f,
                                     0.430127352f,  -0.51687485f,  -0.924538195f, -0.636131644f};
  const std::vector<float> vector = {0.879161179f, 0.950029314f, 0.179283649f, -0.734278619f,
                                     -0.886358559f};
  for (const std::vector<float>* expected : {&matrix, &vector}) {
    const size_t size = expected->size();
    std::vector<float> w(size), g(size), rows(expected == &matrix ? 3 : 0),
        columns(expected == &matrix ? 4 : 5);
    for (size_t i = 0; i < size; ++i) w[i] = float(std::sin(double(i + 1)));
    for (int64_t step = 1; step <= 3; ++step) {
      for (size_t i = 0; i < size; ++i) {
        g[i] = float(std::cos(double(i + 1) * double(step)) / double(i + 1));
      }
      step_all(w, g, rows, columns, {.learning_rate = 0.05, .weight_decay = 0.1, .step = step});
    }
    for (size_t i = 0; i < size; ++i) EXPECT_NEAR(w[i], (*expected)[i], 8.0 * kEps) << i;
  }
}

TEST(Adafactor, WithoutGradientNothingMoves) {
  std::vector<float> w = normals(12, 1), g(12), rows(3), columns(4);
  const std::vector<float> before = w;
  adafactor_matrix(w, g, rows, columns, {});
  EXPECT_EQ(w, before);
}

TEST(Adafactor, DoesNotDependOnThreads) {
  const auto run = [] {
    std::vector<float> w = normals(501 * 333, 1), rows(501), columns(333);
    adafactor_matrix(w, normals(501 * 333, 2), rows, columns,
                     {.learning_rate = 0.1, .weight_decay = 0.01});
    return w;
  };
  EXPECT_EQ(with_threads(1, run), with_threads(3, run));
}

}  // namespace
}  // namespace snug

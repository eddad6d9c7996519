"""Promise 2: memory changes the speed, never the result."""
import os
import unittest

from harness import SnugTest, read_losses, run, write_csv


class SameResult(SnugTest):
    def setUp(self):
        super().setUp()
        self.model = self.init(hidden=64, layers=3)
        self.data = write_csv(self.path("train.csv"), 700, self.rng, longest=30)

    def losses(self, name, *flags):
        run("train", "--model", self.model, "--train", self.data, "--batch-size", 32, "--max-steps", 60, "--dropout", 0.1,
            "--learning-rate", 1e-4, "--output-dir", self.path(name), *self.cache(), *flags)
        losses = read_losses(self.path(name))
        self.assertEqual(len(losses), 60)
        return losses

    def assert_agree(self, a, b):
        worst = max(abs(a[step] - b[step]) / a[step] for step in a)
        self.assertLessEqual(worst, 2e-5)

    def test_capacity_and_recomputation(self):
        whole = self.losses("whole", "--recompute", "none")
        one = self.losses("one", "--recompute", "none", "--micro-batch-tokens", 32)
        again = self.losses("again", "--recompute", "all")
        self.assert_agree(whole, one)
        self.assert_agree(whole, again)
        self.assertEqual(whole, again, "recomputing gives the same bits")
        self.assertNotEqual(whole, one, "packed differently, so rounded differently: else nothing was tested")

    def test_two_runs_of_one_plan_are_equal_bit_for_bit(self):
        self.losses("first")
        self.losses("second")
        with open(os.path.join(self.path("first"), "model.safetensors"), "rb") as a, \
                open(os.path.join(self.path("second"), "model.safetensors"), "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_dropout_matters(self):
        self.assertNotEqual(self.losses("with"), self.losses("without", "--dropout", 0))


if __name__ == "__main__":
    unittest.main()

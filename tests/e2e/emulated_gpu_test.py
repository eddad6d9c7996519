"""What no real GPU does on demand: cards and drivers too old, neighbours on the card, calls that fail. Runs where SNUG is
the program of the emulated GPU (scripts/emulated-gpu.sh)."""
import os
import re
import unittest

from harness import MIB, SnugTest, read_losses, run, write_csv

STEPS = 12
# (allocation that fails, exit code, words): the arena, then pinned memory for what goes to and fro.
ALLOCATIONS = {1: "does not give", 2: "pinned host memory", 3: "pinned host memory"}


def gpu(**settings):
    """The environment that says what the emulated GPU is."""
    return {"SNUG_EMULATED_GPU": " ".join(f"{name}={value}" for name, value in settings.items())}


@unittest.skipUnless("SNUG_EMULATED_GPU" in os.environ, "needs the program of the emulated GPU")
class EmulatedGpu(SnugTest):
    def setUp(self):
        super().setUp()
        self.data = write_csv(self.path("train.csv"), 60, self.rng)
        self.model = self.init(hidden=64, heads=2, train=self.data)

    def train(self, *flags, device="cuda", expect=0, name="out", **settings):
        return run("train", "--model", self.model, "--train", self.data, "--device", device, "--max-steps", STEPS, "--save-steps", 3,
                   "--output-dir", self.path(name), *self.cache(), *flags, env=gpu(**settings), expect=expect)

    def weights(self, name):
        with open(self.path(name, "model.safetensors"), "rb") as f:
            return f.read()

    def written(self, *names):
        """What is in a folder of a run, beside the lock."""
        folder = self.path(*names)
        return set(os.listdir(folder)) - {".lock"} if os.path.isdir(folder) else set()

    def test_devices_that_cannot_be_used_are_refused(self):
        for settings, flags, words in (
                ({"devices": 0}, {}, "no NVIDIA GPU"),
                ({}, {"device": "cuda:7"}, "cuda:7: there is only 1 GPU"),
                ({"devices": 2}, {"device": "cuda:2"}, "cuda:2: there are only 2 GPUs"),
                ({"driver": "11.8"}, {}, "driver is too old: it knows CUDA 11.8"),
                ({"capability": 70}, {}, "compute capability 7.0, snug needs 7.5")):
            with self.subTest(words):
                refused = self.train(expect=8, **flags, **settings)
                self.assertIn(words, refused.err)
                self.assertEqual(refused.err.count("error:"), 1)
                self.assertEqual(self.written("out"), set())

    def test_without_a_gpu_of_use_auto_takes_the_cpu(self):
        for settings in {"devices": 0}, {"driver": "11.8"}:
            facts = run("doctor", env=gpu(**settings)).out
            self.assertRegex(facts, r"device +cpu")

    def test_budgets_that_cannot_be_are_refused(self):
        for flags, settings, words in (
                (("--memory", "999GiB"), {}, "more than cuda:0 has: 16.00 GiB"),
                (("--memory", "100MiB"), {}, "least that works is --memory"),
                ((), {"memory": "510MiB"}, "least that works is --memory"),
                ((), {"neighbours": "15900MiB"}, "other processes hold 15.53 GiB")):
            with self.subTest(words):
                refused = self.train(*flags, expect=4, **settings)
                self.assertIn(words, refused.err)
                self.assertEqual(self.written("out"), set())

    def test_the_least_that_works_works(self):
        refused = self.train("--memory", "100MiB", expect=4)
        least = re.search(r"least that works is --memory (\d+)", refused.err).group(1)
        self.train("--memory", least)
        # Of which two are for a start that takes somewhat more.
        self.train("--memory", int(least) - 2 * MIB - 1, "--overwrite-output-dir", expect=4)

    def test_a_budget_is_cut_to_what_neighbours_leave(self):
        run_beside = self.train("--memory", "12GiB", neighbours="15GiB")
        self.assertRegex(run_beside.err, r"other processes hold 15\.00 GiB")
        self.train(name="alone")
        self.assertEqual(self.weights("out"), self.weights("alone"))

    def test_memory_that_is_not_given_ends_the_run_with_numbers(self):
        for call, words in ALLOCATIONS.items():
            with self.subTest(call):
                refused = self.train(expect=4, failing_allocation=call)
                self.assertIn(words, refused.err)
                self.assertEqual(refused.err.count("error:"), 1)

    def test_behind_an_error_of_the_device_a_run_resumes_as_if_it_had_not_been(self):
        self.train(name="whole")
        failures = 0
        for piece in range(8):
            name = f"failed-{piece}"
            failed = self.train(name=name, expect=None, failing_work=self.rng.randint(1, 400))
            if failed.code != 0:
                failures += 1
                self.assertEqual(failed.code, 8, failed.err)
                self.assertRegex(failed.err, r"error: CUDA: (kernel \w+|cu\w+.*): (unspecified launch failure|the GPU program failed to execute)\n")
                resume = ("--resume-from-checkpoint", "latest") if any(re.fullmatch(r"step-\d+", step) for step in self.written(name, "checkpoints")) else ("--overwrite-output-dir",)
                self.train(*resume, name=name)
            self.assertEqual(self.weights(name), self.weights("whole"))
            self.assertEqual(read_losses(self.path(name)), read_losses(self.path("whole")))
        self.assertGreater(failures, 0)

    def test_cards_of_every_generation_agree(self):
        losses = {}
        for capability in 75, 80, 90:
            name = f"capability-{capability}"
            self.train("--precision", "fp32", name=name, capability=capability)
            losses[capability] = read_losses(self.path(name))
        for step, loss in losses[90].items():
            for capability in 75, 80:
                self.assertAlmostEqual(losses[capability][step], loss, delta=2e-5 * abs(loss))


if __name__ == "__main__":
    unittest.main()

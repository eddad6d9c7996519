"""Optimizer state and what recomputed layers keep, outside of memory: less is planned and used, and nothing else changes."""
import json
import os
import shutil
import unittest

from harness import SnugTest, read_losses, run, write_csv


class Offload(SnugTest):
    def setUp(self):
        super().setUp()
        self.model = self.init(hidden=128, layers=3, vocab=1000)
        self.data = write_csv(self.path("train.csv"), 300, self.rng, longest=20)

    def command(self, command, *flags):
        return (command, "--model", self.model, "--train", self.data, "--batch-size", 16, "--max-steps", 20, "--dropout", 0.1, "--save-steps", 10,
                "--save-total-limit", 9, "--json", *self.cache(), *flags)

    def train(self, name, *flags):
        return run(*self.command("train", "--output-dir", self.path(name), *flags)).json()

    def weights(self, name):
        with open(self.path(name, "model.safetensors"), "rb") as f:
            return f.read()

    def test_same_bits_in_less_memory(self):
        inside = self.train("inside", "--offload", "none", "--recompute", "none", "--micro-batch-tokens", 400)
        outside = self.train("outside", "--offload", "state", "--recompute", "none", "--micro-batch-tokens", 400)
        self.assertEqual(read_losses(self.path("inside")), read_losses(self.path("outside")))
        self.assertEqual(self.weights("inside"), self.weights("outside"))
        saved = inside["measured_peak_bytes"] - outside["measured_peak_bytes"]
        state = {item["name"]: item["bytes"] for item in inside["plan"]["items"]}["optimizer state"]
        self.assertGreater(saved, 0.5 * state)
        self.assertEqual(outside["predicted_arena_bytes"], outside["measured_arena_bytes"])
        self.assertGreaterEqual(outside["plan"]["outside_bytes"], state)

    def test_a_budget_below_the_state_is_met(self):
        least = run(*self.command("plan")).json()["minimum_budget_bytes"]
        self.assertLess(least, run(*self.command("plan", "--offload", "none")).json()["minimum_budget_bytes"])
        report = self.train("least", "--memory", least)
        self.assertLessEqual(report["measured_peak_bytes"], least)
        self.assertIn("state", report["plan"]["offload"].split(","))

    def test_activations_outside_have_the_same_bits(self):
        model, data = self.init("deep", hidden=64, layers=8), write_csv(self.path("long.csv"), 64, self.rng, longest=60)

        def train(name, *flags):
            return run("train", "--model", model, "--train", data, "--batch-size", 32, "--max-steps", 4, "--dropout", 0.1, "--save-strategy", "no",
                       "--micro-batch-tokens", 1024, *flags, "--output-dir", self.path(name), "--json", *self.cache()).json()

        inside = train("inside", "--recompute", "all", "--offload", "none")
        for offload in "activations", "state,activations":
            outside = train(offload, "--offload", offload)
            self.assertEqual(read_losses(self.path("inside")), read_losses(self.path(offload)))
            self.assertEqual(self.weights("inside"), self.weights(offload))
            self.assertEqual(outside["plan"]["offload"], offload)
            self.assertEqual(outside["predicted_arena_bytes"], outside["measured_arena_bytes"])
            value = 4 * 64 * 1024  # of a layer; the last layer's backward reads two of them
            self.assertGreaterEqual(outside["plan"]["outside_bytes"], 6 * value)
            self.assertGreaterEqual(inside["predicted_arena_bytes"] - outside["predicted_arena_bytes"], 4 * value)
        first = train("some", "--recompute", 5, "--offload", "activations")
        self.assertEqual(read_losses(self.path("inside")), read_losses(self.path("some")))
        self.assertEqual(first["plan"]["outside_bytes"], 4 * value)

    def test_the_host_is_counted(self):
        command = self.command("plan", "--device-profile", "h200", "--precision", "bf16", "--recompute", "all")
        plan = run(*command, "--offload", "activations").json()
        value = plan["micro_batch_tokens"] * 128 * 2  # in bf16; of three layers one does not stay
        self.assertEqual(plan["outside_bytes"], (value + 4095) // 4096 * 4096)
        self.assertGreater(plan["host_peak_bytes"], plan["outside_bytes"])
        text = run(*(flag for flag in command if flag != "--json"), "--offload", "activations").out
        self.assertIn("offloaded: what recomputed layers keep", text)
        self.assertIn("on the host", text)

    def test_resumes_bit_for_bit_with_the_state_elsewhere(self):
        self.train("whole", "--offload", "none")
        self.train("half", "--offload", "state,activations")
        shutil.rmtree(self.path("half", "checkpoints", "step-20"))
        self.train("half", "--resume-from-checkpoint", "latest")
        self.assertEqual(self.weights("half"), self.weights("whole"))
        with open(os.path.join(self.path("half"), "run.json")) as f:
            self.assertEqual(json.load(f)["plan"]["offload"], "state,activations", "a resumed run keeps its plan")

    def test_refusals(self):
        for flags, said in ((("--offload", "weights"), "expected auto"), (("--offload", "state,"), "expected auto"), (("--offload", "gradients"), "for GPUs"),
                            (("--offload", "activations", "--recompute", "none"), "--recompute all"),
                            (("--offload", "state,activations", "--recompute", "norms,mlp"), "--recompute all")):
            self.assertIn(said, run(*self.command("plan", *flags), expect=2).err)
        result = run(*self.command("plan", "--device-profile", "t4", "--precision", "fp16", "--offload", "gradients", "--host-memory", "1MiB"), expect=4)
        self.assertIn("--host-memory", result.err)


if __name__ == "__main__":
    unittest.main()

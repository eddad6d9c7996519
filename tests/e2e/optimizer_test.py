"""Every optimizer learns, inside its plan, and continues bit for bit."""
import json
import os
import shutil
import struct
import unittest

from harness import SnugTest, read_losses, run, write_csv

# Learning rates that suit them.
OPTIMIZERS = {"adamw": 1e-3, "adamw_8bit": 1e-3, "adamw_bf16": 1e-3, "adafactor": 1e-3, "sgd": 0.05}
ALL = [(name, rate, ()) for name, rate in OPTIMIZERS.items()] + [("sgd", 0.3, ("--momentum", 0))]
STEPS = 60


def mean(values):
    return sum(values) / len(values)


class Optimizers(SnugTest):
    def setUp(self):
        super().setUp()
        self.model = self.init(hidden=64, layers=2)
        self.data = write_csv(self.path("train.csv"), 400, self.rng, longest=3)

    def command(self, command, optimizer, *flags, rate=None):
        return (command, "--model", self.model, "--train", self.data, "--optim", optimizer, "--batch-size", 16, "--max-steps", STEPS,
                "--dropout", 0.1, "--learning-rate", rate or OPTIMIZERS[optimizer], "--threads", 1, "--json", *self.cache(), *flags)

    def train(self, name, optimizer, *flags, rate=None, expect=0):
        return run(*self.command("train", optimizer, "--output-dir", self.path(name), *flags, rate=rate), expect=expect)

    def weights(self, name):
        with open(self.path(name, "model.safetensors"), "rb") as f:
            return f.read()

    def warm_up(self):
        """Fine-tuning is what all of them are for: SGD leaves fresh weights only slowly."""
        run("train", "--model", self.model, "--train", self.data, "--batch-size", 16, "--max-steps", 25, "--learning-rate", 3e-3,
            "--lr-scheduler-type", "constant", "--threads", 1, "--output-dir", self.path("warm"), *self.cache())
        self.model = self.path("warm")

    def test_each_learns_inside_its_plan(self):
        self.warm_up()
        ends, state = {}, {}
        for optimizer, rate, flags in ALL:
            name = "-".join(map(str, (optimizer, *flags)))
            with self.subTest(name):
                minimum = run(*self.command("plan", optimizer, *flags)).json()["minimum_budget_bytes"]
                result = self.train(name, optimizer, "--memory", minimum, *flags, rate=rate)
                report = result.json()
                self.assertEqual(report["plan"]["optimizer"], optimizer)
                self.assertEqual(report["predicted_arena_bytes"], report["measured_arena_bytes"])
                self.assertLessEqual(report["measured_peak_bytes"], minimum)
                if result.peak_bytes is not None:
                    self.assertLessEqual(result.peak_bytes, minimum)
                losses = list(read_losses(self.path(name)).values())
                ends[name] = mean(losses[-10:])
                self.assertLess(ends[name], 0.85 * mean(losses[:5]))
                state[name] = {item["name"]: item["bytes"] for item in report["plan"]["items"]}.get("optimizer state", 0)
                run("eval", "--model", self.path(name), "--data", self.data)
        for name in ("adamw_8bit", "adamw_bf16"):
            self.assertLess(abs(ends[name] - ends["adamw"]), 0.1 * ends["adamw"] + 0.02, ends)
        self.assertLess(state["adamw_8bit"], state["adamw_bf16"])
        self.assertLess(state["adamw_bf16"], state["adamw"])
        self.assertLess(state["adafactor"], 0.1 * state["adamw"])
        self.assertEqual(state["sgd---momentum-0"], 0)

    def test_resumed_is_the_same_bit_for_bit(self):
        for optimizer in OPTIMIZERS:
            with self.subTest(optimizer):
                flags = ("--save-steps", 20, "--save-total-limit", 9)
                whole, half = f"{optimizer}-whole", f"{optimizer}-half"
                self.train(whole, optimizer, *flags)
                self.train(half, optimizer, *flags)
                for step in (40, 60):
                    shutil.rmtree(self.path(half, "checkpoints", f"step-{step}"))
                self.train(half, optimizer, *flags, "--resume-from-checkpoint", "latest")
                self.assertEqual(self.weights(half), self.weights(whole))
                self.assertEqual(read_losses(self.path(half)), read_losses(self.path(whole)))

    def test_the_plan_does_not_change_the_numbers(self):
        for optimizer in ("adamw_8bit", "adamw_bf16"):
            self.train("kept", optimizer, "--recompute", "none", "--overwrite-output-dir")
            self.train("again", optimizer, "--recompute", "all", "--overwrite-output-dir")
            self.assertEqual(self.weights("kept"), self.weights("again"))

    def test_weights_are_bfloat16_numbers(self):
        self.train("out", "adamw_bf16")
        with open(self.path("out", "model.safetensors"), "rb") as f:
            size, = struct.unpack("<Q", f.read(8))
            header, data = json.loads(f.read(size)), f.read()
        matrices = [entry["data_offsets"] for name, entry in header.items() if name.endswith("intermediate.dense.weight")]
        self.assertEqual(len(matrices), 2)
        for begin, end in matrices:
            self.assertEqual(set(data[begin:end:4]) | set(data[begin + 1:end:4]), {0})

    def test_refusals_say_what_there_is(self):
        result = run("train", "--model", self.model, "--train", self.data, "--optim", "lion", "--output-dir", self.path("bad"),
                     *self.cache(), expect=2)
        self.assertIn("adamw, adamw_8bit, adamw_bf16, adafactor and sgd", result.err)
        self.assertIn("--momentum", self.train("bad", "sgd", "--momentum", 1.5, expect=2).err)
        self.train("first", "adamw_8bit", "--save-steps", 20)
        self.assertIn("optim", self.train("first", "adamw", "--resume-from-checkpoint", "latest", expect=2).err)
        self.assertTrue(os.path.exists(self.path("first", "checkpoints")))

    def test_names_of_other_programs_are_understood(self):
        for name, ours in (("adamw_torch", "adamw"), ("adamw_hf", "adamw"), ("adamw_bnb_8bit", "adamw_8bit")):
            plan = run("plan", "--model", self.model, "--train", self.data, "--optim", name, "--json", *self.cache()).json()
            self.assertEqual(plan["optimizer"], ours)


if __name__ == "__main__":
    unittest.main()

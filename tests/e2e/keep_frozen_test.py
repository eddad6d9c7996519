"""What frozen layers give, computed once and kept: the same curve in less time, inside the same budget."""
import json
import os
import shutil
import signal
import statistics
import subprocess
import time
import unittest

from harness import MIB, SNUG, SnugTest, read_losses, run, write_csv


def read_steps(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        return [line for line in map(json.loads, f) if "loss" in line]


class KeepFrozen(SnugTest):
    LAYERS = 3

    def setUp(self):
        super().setUp()
        self.models, self.count = {}, 0
        self.data = write_csv(self.path("train.csv"), 150, self.rng, longest=20)

    def model(self, family):
        if family not in self.models:
            self.models[family] = self.init(family, hidden=64, layers=self.LAYERS, model_type=family)
        return self.models[family]

    def command(self, name, *flags, family="bert", dropout=0, command="train"):
        return (command, "--model", self.model(family), "--train", self.data, "--batch-size", 8, "--dropout", dropout, "--learning-rate", 1e-3,
                "--precision", "fp32", "--json", *(("--output-dir", self.path(name)) if command == "train" else ()), *self.cache(), *flags)

    def train(self, name, *flags, **more):
        return run(*self.command(name, *flags, **more)).json()

    def weights(self, name):
        with open(self.path(name, "model.safetensors"), "rb") as f:
            return f.read()

    def expect_same_curve(self, *flags, layers, family="bert"):
        self.count += 1
        kept, plain = f"kept-{self.count}", f"plain-{self.count}"
        report = self.train(kept, *flags, family=family)
        self.assertEqual(report["plan"]["kept_layers"], layers)
        self.assertEqual(report["predicted_arena_bytes"], report["measured_arena_bytes"])
        self.assertLessEqual(report["measured_peak_bytes"], report["predicted_peak_bytes"])
        through = self.train(plain, *flags, "--keep-frozen", "off", family=family)
        self.assertEqual(through["plan"]["kept_layers"], 0)
        if "--validation" in flags:
            self.assertAlmostEqual(report["eval_loss"], through["eval_loss"], places=5)
        ours, theirs = read_losses(self.path(kept)), read_losses(self.path(plain))
        self.assertEqual(list(ours), list(theirs))
        for step in theirs:
            self.assertLessEqual(abs(ours[step] - theirs[step]), 2e-5 * theirs[step], step)


class Curve(KeepFrozen):
    def test_texts(self):
        for family, freeze, layers in (("bert", "embeddings,layers.0-1", 2), ("bert", "all-but-head", 3), ("roberta", "embeddings,layers.0", 1),
                                       ("gpt2", "all-but-head", 3), ("gpt2", "embeddings,layers.0-2", 3)):
            with self.subTest(f"{family} {freeze}"):
                self.expect_same_curve("--task", "classify", "--freeze", freeze, family=family, layers=layers)

    def test_a_head_keeps_one_state_of_each_text(self):
        part = self.train("part", "--freeze", "embeddings,layers.0-1")["plan"]["kept_bytes"]
        head = self.train("head", "--freeze", "all-but-head")["plan"]["kept_bytes"]
        self.assertEqual(head, 150 * (16 + 64 * 4))
        self.assertGreater(part, 4 * head)

    def test_language_models(self):
        for flags in (("--block-size", 32), ("--block-size", 32, "--attention-across-documents"), ("--no-concat",)):
            with self.subTest(flags):
                self.expect_same_curve("--task", "clm", "--freeze", "embeddings,layers.0-1", *flags, family="gpt2", layers=2)

    def test_small_micro_batches_and_evaluations(self):
        flags = ("--freeze", "embeddings,layers.0-1", "--micro-batch-tokens", 30, "--recompute", "all", "--validation", self.data)
        self.expect_same_curve(*flags, layers=2)

    def test_files_in_shares(self):
        other = write_csv(self.path("other.csv"), 40, self.rng, longest=20)
        self.data = f"{self.data}:0.3,{other}:0.7"
        self.expect_same_curve("--freeze", "embeddings,layers.0-1", layers=2)

    def test_beside_other_techniques(self):
        self.train("teacher", "--max-steps", 3)
        for flags in (("--quantize", "int8"), ("--optim", "adamw_8bit"), ("--teacher", self.path("teacher")), ("--offload", "state")):
            with self.subTest(flags):
                self.expect_same_curve("--freeze", "all-but-head", *flags, layers=3)


class Choice(KeepFrozen):
    def plan(self, *flags, **more):
        return run(*self.command("", *flags, command="plan", **more)).json()["kept_layers"]

    def test_what_is_not_kept_by_itself(self):
        freeze = ("--freeze", "all-but-head")
        self.assertEqual(self.plan(*freeze), 3)
        self.assertEqual(self.plan(*freeze, "--num-train-epochs", 1), 0, "nothing would be read again")
        self.assertEqual(self.plan(*freeze, dropout=0.1), 0, "dropout changes what they give")
        self.assertEqual(self.plan("--freeze", "embeddings"), 0)
        self.assertEqual(self.plan("--freeze", "layers.0-1"), 0, "embeddings are trained")
        self.assertEqual(self.plan("--lora-rank", 4), 0)
        self.assertEqual(self.plan("--task", "mlm", "--freeze", "embeddings,layers.0-1"), 0, "other words are masked")
        result = run(*self.command("said", *freeze, dropout=0.1))
        self.assertIn("--keep-frozen on", result.err)

    def test_demanded_it_leaves_dropout_out(self):
        flags = ("--freeze", "embeddings,layers.0-1", "--keep-frozen", "on")
        report = run(*self.command("on", *flags, dropout=0.1))
        self.assertEqual(report.json()["plan"]["kept_layers"], 2)
        self.assertIn("no dropout in this run", report.err)
        self.train("again", *flags, dropout=0.1)
        self.assertEqual(read_losses(self.path("on")), read_losses(self.path("again")))
        result = run(*self.command("on", "--freeze", "embeddings,layers.0-1", "--resume-from-checkpoint", "latest", dropout=0.1), expect=2)
        self.assertIn("keep_frozen", result.err)

    def test_refusals(self):
        for flags, said in ((("--keep-frozen", "yes"), "expected auto"), (("--keep-frozen", "on"), "nothing to keep"),
                            (("--keep-frozen", "on", "--lora-rank", 4), "nothing to keep"),
                            (("--keep-frozen", "on", "--task", "mlm", "--freeze", "embeddings,layers.0"), "masks other words")):
            with self.subTest(flags):
                self.assertIn(said, run(*self.command("", *flags, command="plan"), expect=2).err)


class Promise(KeepFrozen):
    def test_random_budgets_are_met(self):
        for i, (family, task, freeze) in enumerate((("bert", "classify", "all-but-head"), ("bert", "classify", "embeddings,layers.0-1"),
                                                    ("gpt2", "clm", "embeddings,layers.0-1"))):
            flags = ("--task", task, "--freeze", freeze)
            plan = run(*self.command("", *flags, family=family, command="plan")).json()
            least = plan["minimum_budget_bytes"]
            for budget in (least, least + int((plan["peak_bytes"] - least + MIB) * self.rng.random())):
                with self.subTest(f"{family} {freeze} {budget}"):
                    result = run(*self.command(f"out-{i}-{budget}", *flags, "--memory", budget, "--max-steps", 40, family=family))
                    report = result.json()
                    self.assertEqual(report["predicted_arena_bytes"], report["measured_arena_bytes"])
                    for measured in filter(None, (report["measured_peak_bytes"], result.peak_bytes)):
                        self.assertLessEqual(measured, budget)

    def test_resumes_bit_for_bit(self):
        flags = ("--freeze", "embeddings,layers.0-1", "--save-steps", 10, "--save-total-limit", 9)
        self.train("whole", *flags)
        self.train("half", *flags)
        for name in os.listdir(self.path("half", "checkpoints")):
            if int(name.split("-")[1]) > 30:
                shutil.rmtree(self.path("half", "checkpoints", name))
        report = self.train("half", *flags, "--resume-from-checkpoint", "latest")
        self.assertEqual(report["plan"]["kept_layers"], 2)
        self.assertEqual(read_losses(self.path("half")), read_losses(self.path("whole")))
        self.assertEqual(self.weights("half"), self.weights("whole"))

    def test_killed_and_resumed(self):
        flags = ("--freeze", "all-but-head", "--save-steps", 5, "--num-train-epochs", 40)
        start = time.monotonic()
        self.train("whole", *flags)
        duration = time.monotonic() - start
        for attempt in range(20):
            saved = os.path.isdir(self.path("killed", "checkpoints")) and any("." not in name for name in os.listdir(self.path("killed", "checkpoints")))
            more = ("--resume-from-checkpoint", "latest") if saved else ("--overwrite-output-dir",)
            process = subprocess.Popen([SNUG, *map(str, self.command("killed", *flags, *more))], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                _, err = process.communicate(timeout=duration * self.rng.random() if attempt < 5 else None)
                self.assertEqual(process.returncode, 0, err.decode())
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
        self.assertEqual(read_losses(self.path("killed")), read_losses(self.path("whole")))
        self.assertEqual(self.weights("killed"), self.weights("whole"))

    def test_a_signal_ends_the_pass_of_frozen_layers(self):
        self.models["bert"] = self.init("wide", hidden=256, layers=6)
        self.data = write_csv(self.path("many.csv"), 20000, self.rng, longest=40)
        process = subprocess.Popen([SNUG, *map(str, self.command("stopped", "--freeze", "all-but-head"))], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while not os.path.exists(self.path("stopped", "metrics.jsonl")):
            time.sleep(0.02)
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 9, err.decode())
        self.assertIn("before step 1", err.decode())

    def test_steps_take_a_fraction_of_the_time(self):
        self.models["bert"] = self.init("wide", hidden=256, layers=4)
        seconds = {}
        for keep in ("auto", "off"):
            report = self.train(keep, "--freeze", "all-but-head", "--keep-frozen", keep)
            seconds[keep] = statistics.median(step["seconds"] for step in read_steps(self.path(keep)))
            self.assertEqual(report["keeping_seconds"] > 0, keep == "auto")
        self.assertLess(seconds["auto"], 0.5 * seconds["off"])


if __name__ == "__main__":
    unittest.main()

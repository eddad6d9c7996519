"""Training a part of a model: frozen layers and adapters."""
import json
import os
import shutil
import struct
import unittest

from harness import SnugTest, read_losses, run, sentence, write_csv


def read_tensors(path):
    """Name -> stored bytes of a safetensors file."""
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
        data = f.read()
    return {name: data[slice(*entry["data_offsets"])] for name, entry in header.items() if name != "__metadata__"}


class Tuning(SnugTest):
    def setUp(self):
        super().setUp()
        self.model = self.init(hidden=64, layers=3)
        self.data = write_csv(self.path("train.csv"), 400, self.rng, longest=20)

    def train(self, name, *flags, expect=0, steps=30):
        return run("train", "--model", self.model, "--train", self.data, "--batch-size", 16, "--max-steps", steps, "--dropout", 0.1,
                   "--learning-rate", 1e-3, "--output-dir", self.path(name), "--json", *self.cache(), *flags, expect=expect)

    def changed(self, name):
        """Names of the tensors that training has changed."""
        before = read_tensors(os.path.join(self.model, "model.safetensors"))
        after = read_tensors(self.path(name, "model.safetensors"))
        return {n for n in after if after[n] != before.get(n)}


class Freeze(Tuning):
    def test_frozen_tensors_stay_bit_for_bit(self):
        self.train("out", "--freeze", "embeddings,layers.0-1")
        changed = self.changed("out")
        self.assertTrue(any("layer.2." in name for name in changed))
        self.assertTrue(any("classifier" in name for name in changed))
        self.assertFalse(any("embeddings" in name or "layer.0." in name or "layer.1." in name for name in changed))

    def test_less_is_planned_and_used(self):
        full = self.train("full").json()
        head = self.train("head", "--freeze", "all-but-head").json()
        self.assertLess(head["plan"]["peak_bytes"], full["plan"]["peak_bytes"])
        for report in (full, head):
            self.assertEqual(report["predicted_arena_bytes"], report["measured_arena_bytes"])
        self.assertTrue(self.changed("head") <= {"classifier.weight", "classifier.bias", "bert.pooler.dense.weight",
                                                 "bert.pooler.dense.bias"})

    def test_same_losses_under_other_plans_and_after_resuming(self):
        flags = ("--freeze", "embeddings,layers.0", "--save-steps", 10)
        self.train("whole", *flags)
        self.train("again", *flags, "--recompute", "all")
        self.assertEqual(read_losses(self.path("whole")), read_losses(self.path("again")))
        self.train("half", *flags, "--save-total-limit", 9)
        for step in (20, 30):
            shutil.rmtree(self.path("half", "checkpoints", f"step-{step}"))
        self.train("half", *flags, "--resume-from-checkpoint", "latest")
        self.assertEqual(read_tensors(self.path("half", "model.safetensors")), read_tensors(self.path("whole", "model.safetensors")))

    def test_refusals_say_what_there_is(self):
        for entry, said in (("encoder.7", "layers 0 to 2"), ("nothing-like-it", "no parameter"), ("*", "nothing is left"),
                            ("layers.2-1,embeddings", "layers 0 to 2")):
            with self.subTest(entry):
                result = self.train("bad", "--freeze", entry, "--overwrite-output-dir", expect=2)
                self.assertIn(said, result.err)


class Adapters(Tuning):
    FLAGS = ("--lora-rank", 4, "--lora-dropout", 0.1)

    def test_an_adapter_is_written_used_and_merged(self):
        report = self.train("out", *self.FLAGS).json()
        self.assertEqual(report["predicted_arena_bytes"], report["measured_arena_bytes"])
        self.assertLess(report["plan"]["peak_bytes"], self.train("full").json()["plan"]["peak_bytes"])
        self.assertFalse(os.path.exists(self.path("out", "model.safetensors")))
        with open(self.path("out", "adapter_config.json")) as f:
            self.assertEqual(json.load(f)["r"], 4)
        run("merge", "--adapter", self.path("out"), "--output-dir", self.path("merged"))
        scores = [run("eval", "--model", self.path(name), "--data", self.data, "--json").json()["loss"]
                  for name in ("out", "merged")]
        self.assertEqual(scores[0], scores[1])

    def test_same_losses_under_other_plans_and_after_resuming(self):
        flags = (*self.FLAGS, "--save-steps", 10, "--save-total-limit", 9)
        self.train("whole", *flags)
        self.train("again", *flags, "--recompute", "all")
        self.assertEqual(read_losses(self.path("whole")), read_losses(self.path("again")))
        for step in (20, 30):
            shutil.rmtree(self.path("again", "checkpoints", f"step-{step}"))
        self.train("again", *flags, "--resume-from-checkpoint", "latest")
        self.assertEqual(*(read_tensors(self.path(name, "adapter_model.safetensors")) for name in ("whole", "again")))

    def test_merging_writes_over_nothing(self):
        self.train("out", *self.FLAGS, steps=1)
        bare = self.path("bare")  # as PEFT writes it, with the adapters alone
        os.mkdir(bare)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(self.path("out", name), bare)
        run("merge", "--adapter", self.path("out"), "--output-dir", self.path("merged"))
        for folder in (self.model, self.path("out"), bare, self.path("merged")):
            before = {name: os.stat(os.path.join(folder, name)).st_mtime_ns for name in os.listdir(folder)}
            result = run("merge", "--adapter", self.path("out"), "--output-dir", folder, expect=2)
            self.assertIn("holds a model already; choose another --output-dir", result.err)
            self.assertEqual(before, {name: os.stat(os.path.join(folder, name)).st_mtime_ns for name in os.listdir(folder)})

    def test_peft_finds_the_layers_by_name(self):
        """It takes "all-linear" alone, but not in a list. tests/reference/lora.py loads such folders in PEFT."""
        self.train("out", "--lora-rank", 4, "--lora-target-modules", "all-linear", steps=1)
        with open(self.path("out", "adapter_config.json")) as f:
            config = json.load(f)
        self.assertEqual(sorted(config["target_modules"]), ["dense", "key", "query", "value"])
        # PEFT's own spelling is read back as well.
        config["target_modules"] = "all-linear"
        with open(self.path("out", "adapter_config.json"), "w") as f:
            json.dump(config, f)
        run("predict", "--model", self.path("out"), "--text", "time")

    def test_peft_finds_all_of_a_head_that_is_trained_in_part_or_tied(self):
        text = self.path("text.txt")
        with open(text, "w") as f:
            f.writelines(sentence(self.rng, 14) + "\n" for _ in range(100))
        prefix = "base_model.model."
        cases = (("bert", ["--task", "mlm"], "cls.predictions.decoder", "cls.predictions.bias", "bert.embeddings.word_embeddings.weight"),
                 ("roberta", ["--task", "mlm", "--freeze", "lm_head.dense"], "lm_head.decoder", "lm_head.bias",
                  "roberta.embeddings.word_embeddings.weight"))
        for kind, flags, layer, bias, words in cases:
            with self.subTest(kind):
                model = self.init(kind, train=text, vocab=400 if kind != "bert" else 200, model_type=kind)
                run("train", "--model", model, "--train", text, "--max-steps", 2, *self.FLAGS, *flags, "--output-dir", self.path(f"{kind}-out"),
                    *self.cache())
                written = read_tensors(self.path(f"{kind}-out", "adapter_model.safetensors"))
                self.assertEqual(written[f"{prefix}{layer}.bias"], written[prefix + bias])
                self.assertEqual(written[f"{prefix}{layer}.weight"], read_tensors(os.path.join(model, "model.safetensors"))[words])
                if kind == "roberta":
                    self.assertIn(f"{prefix}lm_head.dense.weight", written)
                run("merge", "--adapter", self.path(f"{kind}-out"), "--output-dir", self.path(f"{kind}-merged"))
                scores = [run("eval", "--model", self.path(f"{kind}-{name}"), "--data", text, "--json",
                              env={"XDG_CACHE_HOME": self.path("cache")}).json()["loss"] for name in ("out", "merged")]
                self.assertEqual(*scores)

    def test_a_head_that_is_made_new_and_frozen_is_written(self):
        self.train("out", "--lora-rank", 4, "--freeze", "classifier,pooler", steps=5)
        run("merge", "--adapter", self.path("out"), "--output-dir", self.path("merged"))
        scores = [run("eval", "--model", self.path(name), "--data", self.data, "--json").json()["loss"] for name in ("out", "merged")]
        self.assertEqual(*scores)

    def test_contradictions_are_refused(self):
        for flags, said in ((["--lora-rank", 4, "--freeze", "all-but-head"], "none of the adapters"),
                            (["--lora-rank", 4, "--freeze", "layers.0-2"], "none of the adapters"),
                            (["--lora-alpha", 16], "--lora-alpha without adapters"),
                            (["--lora-dropout", 0.1], "--lora-dropout without adapters"),
                            (["--lora-rank", 4, "--lora-alpha", "inf"], "--lora-alpha is inf"),
                            (["--lora-rank", 4, "--lora-alpha", "nan"], "--lora-alpha is nan")):
            with self.subTest(flags=flags):
                result = self.train("bad", *flags, expect=2)
                self.assertIn(said, result.err)
                self.assertFalse(os.path.exists(self.path("bad", "adapter_config.json")))
        self.train("some", "--lora-rank", 4, "--freeze", "layers.0", steps=1)

    def test_refusals_say_what_there_is(self):
        result = self.train("bad", "--lora-rank", 4, "--lora-target-modules", "c_attn", expect=2)
        self.assertIn("query", result.err)
        result = self.train("bad", "--lora-target-modules", "query", expect=2)
        self.assertIn("--lora-rank", result.err)
        self.train("out", *self.FLAGS, steps=1)
        result = run("train", "--model", self.path("out"), "--train", self.data, "--output-dir", self.path("more"), *self.cache(), expect=2)
        self.assertIn("snug merge", result.err)


if __name__ == "__main__":
    unittest.main()

"""int8 from outside: folders that snug quantize writes, what they cost in accuracy, frozen layers in int8 while others are
trained, and what cannot be quantised."""
import json
import os
import unittest

from harness import SHARED, SnugTest, needs_shared, run, sentence, write_csv

MINILM = os.path.join(SHARED, "data", "weights", "all-MiniLM-L6-v2-fp16")
SST2 = os.path.join(SHARED, "data", "sst2")


class Quantize(SnugTest):
    def train(self, name, model, data, *flags, steps=40):
        run("train", "--model", model, "--train", data, "--batch-size", 16, "--max-steps", steps, "--learning-rate", 1e-3,
            "--output-dir", self.path(name), *self.cache(), *flags)
        with open(self.path(name, "run.json")) as f:
            return json.load(f)

    def quantize(self, model, name="quantized"):
        summary = run("quantize", "--model", model, "--output-dir", self.path(name), "--json").json()
        self.assertEqual(os.path.getsize(self.path(name, "model.safetensors")), summary["bytes"])
        return self.path(name), summary

    def write_text(self, name="text.txt", lines=300):
        with open(self.path(name), "w") as f:
            f.writelines(sentence(self.rng, 14) + "\n" for _ in range(lines))
        return self.path(name)

    def classifier(self, **more):
        data = write_csv(self.path("train.csv"), 300, self.rng)
        self.train("trained", self.init(**more), data)
        return self.path("trained"), data


class Folders(Quantize):
    def test_a_classifier(self):
        model, data = self.classifier(hidden=64, layers=3)
        quantized, summary = self.quantize(model)
        self.assertLess(summary["share_of_fp32"], 0.5)  # a small model has many positions and vectors
        both = run("eval", "--model", quantized, "--compare-with", model, "--data", data, "--json").json()
        alone = run("eval", "--model", model, "--data", data, "--json").json()
        self.assertEqual(both["compared_with"]["accuracy"], alone["accuracy"])
        self.assertAlmostEqual(both["accuracy"] - alone["accuracy"], both["difference"]["accuracy"])
        self.assertLessEqual(abs(both["difference"]["accuracy"]), 0.02)
        self.assertNotEqual(both["loss"], alone["loss"])
        self.assertIn("compared with", run("eval", "--model", quantized, "--compare-with", model, "--data", data).out)
        prediction = run("predict", "--model", quantized, "--text", "time year", "--json").json()
        original = run("predict", "--model", model, "--text", "time year", "--json").json()
        self.assertEqual(prediction["label"], original["label"])
        self.assertAlmostEqual(prediction["score"], original["score"], delta=0.05)
        inspected, before = (run("inspect", folder, "--json").json() for folder in (quantized, model))
        self.assertEqual((inspected["quantized"], before["quantized"]), ("int8", "no"))
        self.assertEqual(inspected["parameters"], before["parameters"])
        self.assertIn("int8", inspected["bytes_by_dtype"])

    def test_language_models(self):
        text = self.write_text()
        for kind, flags in ("gpt2", ["--block-size", 32]), ("roberta", ["--task", "mlm"]), ("bert", ["--task", "mlm"]):
            with self.subTest(kind=kind):
                model = self.init(f"{kind}-fresh", train=text, vocab=400 if kind != "bert" else 200, model_type=kind)
                self.train(kind, model, text, *flags)
                quantized, _ = self.quantize(self.path(kind), f"{kind}-quantized")
                both = run("eval", "--model", quantized, "--compare-with", self.path(kind), "--data", text, "--json",
                           env={"XDG_CACHE_HOME": self.path("cache")}).json()
                self.assertLess(abs(both["difference"]["loss"]), 0.02)
                self.assertNotEqual(both["difference"]["loss"], 0)
                if kind == "gpt2":
                    flags = ["--prompt", "time", "--max-new-tokens", 8, "--greedy", "--json"]
                    texts = [run("generate", "--model", folder, *flags).json() for folder in (quantized, self.path(kind))]
                    self.assertTrue(texts[0]["texts"][0]["text"])

    def test_embeddings(self):
        model = self.init(hidden=128, layers=4, vocab=3000)
        quantized, _ = self.quantize(model)
        texts = self.write_text(lines=50)
        outputs = [run("embed", "--model", folder, "--input", texts) for folder in (model, quantized)]
        vectors = [[json.loads(line)["embedding"] for line in output.out.splitlines()] for output in outputs]
        for a, b in zip(*vectors):
            self.assertGreater(sum(x * y for x, y in zip(a, b)), 0.999)

    def test_what_cannot_be_done(self):
        model, data = self.classifier()
        quantized, _ = self.quantize(model)
        self.assertIn("already", run("quantize", "--model", quantized, "--output-dir", self.path("again"), expect=2).err)
        self.assertIn("already", run("quantize", "--model", model, "--output-dir", quantized, expect=2).err)
        refusal = run("train", "--model", quantized, "--train", data, "--output-dir", self.path("no"), *self.cache(), expect=2).err
        self.assertIn("--freeze", refusal)
        self.assertIn("int8", refusal)
        config = self.path("quantized", "config.json")
        with open(config) as f:
            document = json.load(f)
        with open(config, "w") as f:
            json.dump({**document, "quantization_config": {"quant_method": "gptq"}}, f)
        self.assertIn("gptq", run("predict", "--model", quantized, "--text", "a", expect=3).err)
        del document["quantization_config"]
        with open(config, "w") as f:
            json.dump(document, f)
        self.assertIn("int8", run("predict", "--model", quantized, "--text", "a", expect=3).err)


class FrozenLayers(Quantize):
    def test_a_head_learns_on_int8_layers(self):
        model, data = self.classifier(hidden=64, layers=3)
        flags = ["--freeze", "all-but-head"]
        plain = self.train("plain", model, data, *flags, steps=20)
        small = self.train("small", model, data, *flags, "--quantize", "int8", steps=20)
        self.assertEqual(small["measured_arena_bytes"], small["predicted_arena_bytes"])
        self.assertLess(small["predicted_arena_bytes"], plain["predicted_arena_bytes"])
        self.assertAlmostEqual(small["train_loss"], plain["train_loss"], delta=0.05)
        run("predict", "--model", self.path("small"), "--text", "time")
        # Layers above the frozen ones get their gradient through them.
        self.train("middle", model, data, "--freeze", "layers.1-2", "--quantize", "int8", steps=10)

    def test_adapters_learn_on_int8_layers(self):
        model, data = self.classifier(hidden=64, layers=3)
        text = self.write_text()
        language = self.init("gpt2", train=text, vocab=400, model_type="gpt2")
        for name, source, file, flags in ("bert", model, data, ["--lora-target-modules", "all-linear"]), ("gpt2", language, text, ["--block-size", 32]):
            with self.subTest(name=name):
                flags += ["--lora-rank", 4]
                plain = self.train(f"{name}-plain", source, file, *flags, steps=20)
                small = self.train(f"{name}-small", source, file, *flags, "--quantize", "int8", steps=20)
                self.assertEqual(small["measured_arena_bytes"], small["predicted_arena_bytes"])
                self.assertAlmostEqual(small["train_loss"], plain["train_loss"], delta=0.05)
                env = {"XDG_CACHE_HOME": self.path("cache")}
                both = run("eval", "--model", self.path(f"{name}-small"), "--compare-with", self.path(f"{name}-plain"), "--data", file, "--json",
                           env=env).json()
                self.assertLess(abs(both["difference"]["loss"]), 0.1)

    def test_a_teacher_may_be_int8(self):
        teacher, data = self.classifier(hidden=64, layers=3)
        student = self.init("student", train=self.path("vocab-source.csv"), hidden=32)
        flags = ["--teacher", teacher]
        plain = self.train("plain", student, data, *flags, steps=10)
        small = self.train("small", student, data, *flags, "--quantize", "int8", steps=10)
        self.assertEqual(small["measured_arena_bytes"], small["predicted_arena_bytes"])
        self.assertLess(small["predicted_arena_bytes"], plain["predicted_arena_bytes"])
        self.assertAlmostEqual(small["train_loss"], plain["train_loss"], delta=0.05)

    def test_a_head_learns_on_an_int8_folder(self):
        model, data = self.classifier(hidden=64, layers=2)
        quantized, _ = self.quantize(model)
        self.train("head", quantized, data, "--freeze", "all-but-head", steps=10)
        self.assertEqual(run("inspect", self.path("head"), "--json").json()["quantized"], "int8")
        refusal = run("train", "--model", quantized, "--train", data, "--lora-rank", 4, "--output-dir", self.path("no"), *self.cache(), expect=2)
        self.assertIn("--quantize int8", refusal.err)
        run("eval", "--model", self.path("head"), "--data", data)

    def test_what_cannot_be_done(self):
        model, data = self.classifier()
        for flags, message in (["--quantize", "int8"], "--freeze"), (["--quantize", "int4"], "int8"), \
                (["--quantize", "int8", "--freeze", "*.bias"], "--freeze"):
            refusal = run("train", "--model", model, "--train", data, "--output-dir", self.path("no"), *self.cache(), *flags, expect=2)
            self.assertIn(message, refusal.err)


class RealWeights(Quantize):
    @needs_shared("data/weights/all-MiniLM-L6-v2-fp16")
    def test_minilm(self):
        quantized, summary = self.quantize(MINILM)
        self.assertLessEqual(summary["share_of_fp32"], 0.30)
        golden = os.path.join(MINILM, "golden-embeddings.jsonl")
        ours = [json.loads(line)["embedding"] for line in run("embed", "--model", quantized, "--input", golden).out.splitlines()]
        with open(golden) as f:
            theirs = [json.loads(line)["embedding"] for line in f]
        worst = min(sum(a * b for a, b in zip(x, y)) for x, y in zip(ours, theirs))
        print({"share_of_fp32": summary["share_of_fp32"], "least cosine to the original": worst})
        self.assertGreaterEqual(worst, 0.985)


if __name__ == "__main__":
    unittest.main()

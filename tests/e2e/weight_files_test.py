"""Weights from outside: the same model out of safetensors, pytorch_model.bin and a TensorFlow checkpoint gives the same numbers;
DistilBERT folders; files that want to be executed, and files that lie."""
import json
import os
import shutil
import struct
import unittest
import zipfile

from harness import ROOT, SnugTest, read_losses, run, write_csv

GOLDEN = os.path.join(ROOT, "tests", "golden")


def read_safetensors(path):
    """name -> (shape, bytes) of a file of fp32."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__", None)
    return {name: (t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]) for name, t in header.items()}


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def row_strides(shape):
    strides, step = [], 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return strides


def tensor(key, shape, elements):
    """As torch.save pickles a tensor that is all of its storage."""
    numbers = lambda values: b"(" + b"".join(map(number, values)) + b"t"
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + number(elements) + b"tQ"
    return (b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(0) + numbers(shape) + numbers(row_strides(shape)) +
            b"\x89ccollections\nOrderedDict\n)RtR")


def write_torch(path, tensors):
    with zipfile.ZipFile(path, "w") as archive:
        entries = b""
        for key, (name, (shape, data)) in enumerate(tensors.items()):
            entries += text(name) + tensor(str(key), shape, len(data) // 4)
            archive.writestr(f"model/data/{key}", data)
        archive.writestr("model/data.pkl", b"\x80\x02}(" + entries + b"u.")
        archive.writestr("model/byteorder", "little")


class WeightFiles(SnugTest):
    def copied(self, model, name, without=()):
        shutil.copytree(model, self.path(name))
        for file in without:
            os.remove(self.path(name, file))
        return self.path(name)

    def as_torch(self, model, name="torch"):
        folder = self.copied(model, name, ["model.safetensors"])
        write_torch(os.path.join(folder, "pytorch_model.bin"), read_safetensors(os.path.join(model, "model.safetensors")))
        return folder

    def golden(self, name, source):
        """A folder of the golden files with a vocabulary of its size."""
        os.makedirs(self.path(name))
        for file in source:
            shutil.copy(os.path.join(GOLDEN, file), self.path(name))
        with open(self.path(name, "vocab.txt"), "w") as f:
            f.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz",
                               *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"), *(f"[unused{i}]" for i in range(40))]) + "\n")
        return self.path(name)

    def train(self, model, name, data, *flags):
        run("train", "--model", model, "--train", data, "--batch-size", 8, "--max-steps", 5, "--output-dir", self.path(name),
            *self.cache(), *flags)
        return self.path(name)

    def refuse(self, model, words):
        result = run("inspect", model, expect=3)
        self.assertIn(words, result.err)
        return result


class Formats(WeightFiles):
    def test_pytorch_gives_the_same_as_safetensors(self):
        data = write_csv(self.path("train.csv"), 60, self.rng)
        model = self.train(self.init(), "trained", data)
        torch = self.as_torch(model)
        for args in ["inspect", model], ["inspect", torch]:
            self.assertEqual(run(*args, "--json").json()["parameters"], run("inspect", model, "--json").json()["parameters"])
        scores = [run("predict", "--model", m, "--text", "time year", "--json").out for m in (model, torch)]
        self.assertEqual(*scores)
        losses = [read_losses(self.train(m, f"again-{i}", data)) for i, m in enumerate((model, torch))]
        self.assertEqual(*losses)

    def test_shards_of_pytorch(self):
        model = self.init()
        tensors = read_safetensors(os.path.join(model, "model.safetensors"))
        folder = self.copied(model, "sharded", ["model.safetensors"])
        names, total = list(tensors), sum(len(data) for _, data in tensors.values())
        parts = {"pytorch_model-1.bin": names[::2], "pytorch_model-2.bin": names[1::2]}
        for file, part in parts.items():
            write_torch(os.path.join(folder, file), {name: tensors[name] for name in part})
        def index(total):
            with open(os.path.join(folder, "pytorch_model.bin.index.json"), "w") as f:
                json.dump({"metadata": {"total_size": total}, "weight_map": {n: file for file, part in parts.items() for n in part}}, f)
        index(total)
        self.assertEqual(run("inspect", folder, "--json").json()["bytes"], total)
        index(total + 4)
        self.refuse(folder, f"total_size is {total + 4}, but the listed tensors take {total} bytes")

    def test_tensorflow_gives_the_same_as_safetensors(self):
        checkpoint = ["files/bert_config.json", "files/bert_model.ckpt.index", "files/bert_model.ckpt.data-00000-of-00001"]
        tensorflow = self.golden("tensorflow", checkpoint)
        safetensors = self.golden("safetensors", ["bert-mlm-tiny/config.json", "bert-mlm-tiny/model.safetensors"])
        with open(self.path("text.txt"), "w") as f:
            f.write("\n".join("abc def ghi jkl mno pqr stu vwx yz " * 3 for _ in range(20)) + "\n")
        losses = [read_losses(self.train(m, f"out-{i}", self.path("text.txt"), "--task", "mlm", "--max-length", 32))
                  for i, m in enumerate((tensorflow, safetensors))]
        self.assertEqual(*losses)
        self.assertEqual(run("inspect", tensorflow, "--json").json()["layers"], 3)
        with open(os.path.join(tensorflow, "bert_model.ckpt.data-00000-of-00001"), "r+b") as f:
            f.seek(1000)
            f.write(b"\xff\xff\xff\xff")
        result = run("train", "--model", tensorflow, "--train", self.path("text.txt"), "--task", "mlm", "--max-length", 32, "--max-steps", 1,
                     "--output-dir", self.path("broken"), *self.cache(), expect=3)
        self.assertIn("is damaged: its checksum is", result.err)


class DistilBert(WeightFiles):
    def test_learns_is_saved_and_read_again(self):
        model = self.golden("distilbert", ["distilbert-tiny/config.json", "distilbert-tiny/model.safetensors"])
        data = self.path("train.csv")
        with open(data, "w") as f:
            f.write("text,label\n" + "".join(f"{'abc def' if i % 2 else 'xyz uvw'} {'gh ' * (i % 5)},{i % 2}\n" for i in range(64)))
        out = self.train(model, "out", data, "--ignore-mismatched-sizes", "--learning-rate", "5e-3", "--num-train-epochs", 3)
        with open(os.path.join(out, "config.json")) as f:
            config = json.load(f)
        self.assertEqual((config["model_type"], config["architectures"]), ("distilbert", ["DistilBertForSequenceClassification"]))
        names = read_safetensors(os.path.join(out, "model.safetensors")).keys()
        self.assertEqual(names, read_safetensors(os.path.join(model, "model.safetensors")).keys())
        with open(os.path.join(out, "tokenizer_config.json")) as f:
            self.assertEqual(json.load(f)["model_input_names"], ["input_ids", "attention_mask"])
        run("eval", "--model", out, "--data", data)
        self.assertIn(run("predict", "--model", out, "--text", "abc def", "--json").json()["label"], ("0", "1"))
        run("embed", "--model", model, "--input", self.path("train.csv"))

    def test_adapters(self):
        model = self.golden("distilbert", ["distilbert-tiny/config.json", "distilbert-tiny/model.safetensors"])
        data = write_csv(self.path("train.csv"), 30, self.rng, labels=("a", "b", "c"))
        out = self.train(model, "out", data, "--lora-rank", 4, "--ignore-mismatched-sizes")
        names = read_safetensors(os.path.join(out, "adapter_model.safetensors")).keys()
        self.assertIn("base_model.model.distilbert.transformer.layer.0.attention.q_lin.lora_A.weight", names)
        self.assertNotIn("base_model.model.distilbert.transformer.layer.0.attention.k_lin.lora_A.weight", names)
        run("predict", "--model", out, "--text", "abc")


class Hostile(WeightFiles):
    def test_nothing_is_executed(self):
        model, mark = self.as_torch(self.init()), self.path("executed")
        call = lambda module, name, argument: f"c{module}\n{name}\n(".encode() + text(argument) + b"tR"
        cases = {"os.system": call("os", "system", f"touch {mark}"),
                 "posix.system": call("posix", "system", f"touch {mark}"),
                 "builtins.eval": call("builtins", "eval", f"open({mark!r}, 'w')"),
                 "torch.load": call("torch", "load", "x.bin")}
        for name, evil in cases.items():
            with self.subTest(name), zipfile.ZipFile(os.path.join(model, "pytorch_model.bin"), "w") as archive:
                archive.writestr("model/data.pkl", b"\x80\x02}" + text("w") + evil + b"s.")
                archive.close()
                self.refuse(model, f'names "{name}", which is code')
        self.assertFalse(os.path.exists(mark))

    def test_bombs_and_lies(self):
        model = self.as_torch(self.init())
        path = os.path.join(model, "pytorch_model.bin")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("model/data.pkl", bytes(50_000_000))
        self.refuse(model, "is compressed")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data.pkl", b"\x80\x02}" + text("w") + tensor("0", [1000], 1000) + b"s.")
            archive.writestr("model/data/0", bytes(40))
        self.refuse(model, "has 1000 elements of fp32, but 40 bytes are there")
        for length in 0, 10, 100:
            with open(path, "r+b") as f:
                f.truncate(length)
            self.refuse(model, "pytorch_model.bin")


if __name__ == "__main__":
    unittest.main()

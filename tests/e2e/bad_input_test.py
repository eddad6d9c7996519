"""Bad input, one table: each case gives the expected exit code and one error that names the place, within seconds, leaving
nothing half-written and the inputs as they were."""
import json
import os
import shutil
import socket
import struct
import time
import unittest

from harness import SnugTest, run, write_csv


def safetensors(header, data=b""):
    if isinstance(header, dict):
        header = json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def tensor(begin, end, shape=None, dtype="F32"):
    return {"dtype": dtype, "shape": shape if shape is not None else [(end - begin) // 4], "data_offsets": [begin, end]}


HEADER = struct.Struct("<Q")
DEEP = b'{"a":' * 100_000
# What model.safetensors holds -> words that the error must have. Numbers refer to the list of corruptions in the design notes.
WEIGHT_FILES = {
    "1 no bytes": (b"", "short"),
    "1 seven bytes": (b"1234567", "short"),
    "2 header beyond the file": (HEADER.pack(1000) + b"{}", "1000"),
    "2 header of 2^64-1": (b"\xff" * 8 + b"{}", "18446744073709551615"),
    "3 empty header": (HEADER.pack(0), "empty"),
    "4 header over the cap": (HEADER.pack(100_000_001) + b" " * 100_000_001, "100000000"),
    "5 not UTF-8": (safetensors(b'{"\xff": 1}'), "model.safetensors"),
    "5 not JSON": (safetensors(b"hello wo"), "model.safetensors"),
    "5 an array": (safetensors(b"[1, 2]  "), "model.safetensors"),
    "6 nested deeply": (safetensors(DEEP), "model.safetensors"),
    "7 one name twice": (safetensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                                     b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"), "\"a\""),
    "7 dtype twice": (safetensors(b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"), "dtype"),
    "8 overlap": (safetensors({"a": tensor(0, 8), "b": tensor(4, 12)}, b"x" * 12), "b"),
    "9 hole": (safetensors({"a": tensor(0, 4), "b": tensor(8, 12)}, b"x" * 12), "b"),
    "9 trailing bytes": (safetensors({"a": tensor(0, 4)}, b"x" * 9), "5 bytes after"),
    "10 end before begin": (safetensors({"a": tensor(8, 4, [1])}, b"x" * 8), "a"),
    "10 beyond the data": (safetensors({"a": tensor(0, 400)}, b"x" * 4), "400"),
    "10 negative": (safetensors({"a": tensor(-4, 0, [1])}, b"x" * 4), "a"),
    "10 fraction": (safetensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4.5]}}', b"1234"), "4.5"),
    "10 a string": (safetensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,"4"]}}', b"1234"), "a"),
    "11 shape overflows": (safetensors({"a": tensor(0, 4, [2**32, 2**32, 4])}, b"1234"), "a"),
    "12 shape and bytes differ": (safetensors({"a": tensor(0, 8, [3])}, b"x" * 8), "12"),
    "13 unknown dtype": (safetensors({"a": tensor(0, 4, [4], "F8_E4M3")}, b"1234"), "F8_E4M3"),
    "14 metadata with a number": (safetensors({"__metadata__": {"n": 1}, "a": tensor(0, 4)}, b"1234"), "__metadata__"),
}

GOOD_CONFIG = dict(model_type="bert", vocab_size=300, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                   intermediate_size=192, max_position_embeddings=64)
CONFIGS = {
    "38 heads do not divide": (dict(num_attention_heads=5), "5"),
    "38 zero layers": (dict(num_hidden_layers=0), "num_hidden_layers"),
    "38 negative heads": (dict(num_attention_heads=-4), "num_attention_heads"),
    "38 a billion layers": (dict(num_hidden_layers=10**9), "num_hidden_layers"),
    "38 a billion words": (dict(vocab_size=10**9), "vocab_size"),
    "38 a fraction": (dict(hidden_size=48.5), "hidden_size"),
    "38 a string": (dict(hidden_size="48"), "hidden_size"),
    "38 missing": (dict(hidden_size=None), "hidden_size"),
    "38 unknown activation": (dict(hidden_act="swish9"), "swish9"),
    "38 another family": (dict(model_type="t5"), "t5"),
    "38 relative positions": (dict(position_embedding_type="relative_key"), "relative_key"),
    "39 fewer layers than the file": (dict(num_hidden_layers=1), "encoder.layer.1"),
    "39 more layers than the file": (dict(num_hidden_layers=3), "encoder.layer.2"),
    "39 another width": (dict(hidden_size=64), "expected"),
    "40 fewer words than the tokenizer": (dict(vocab_size=100), "100"),
}

# File name, contents, words of the error; all with exit code 3.
DATA_FILES = {
    "45 unclosed quote": ("t.csv", 'text,label\na,x\n"b,y\nc,x\n', "line 3"),
    "48 too few columns": ("t.csv", "text,label\na,x\nb\n", "line 3"),
    "48 too many columns": ("t.csv", "text,label\na,x\nb,y,z\n", "line 3"),
    "48 duplicate header": ("t.csv", "text,text,label\na,b,x\n", "text"),
    "48 no header": ("t.csv", "good film,1\nbad film,0\n", "columns"),
    "48 no label column": ("t.csv", "text,stars\na,1\n", "label"),
    "49 another separator": ("t.csv", "text;label\na;x\nb;y\n", ";"),
    "50 UTF-16": ("t.csv", "text,label\na,x\n".encode("utf-16"), "UTF-16"),
    "50 Latin-1": ("t.csv", "text,label\na,x\ncaf\xe9,y\n".encode("latin-1"), "line 3"),
    "50 overlong": ("t.tsv", b"text\tlabel\na\tx\n\xc0\xaf\ty\n", "line 3"),
    "50 surrogate": ("t.tsv", b"text\tlabel\n\xed\xa0\x80\ty\n", "line 2"),
    "52 truncated last line": ("t.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "la', "line 2"),
    "52 an array file": ("t.jsonl", '[{"text": "a", "label": "x"}]\n', "line 1"),
    "52 objects on one line": ("t.jsonl", '{"text": "a", "label": "x"} {"text": "b", "label": "y"}\n', "line 1"),
    "53 duplicate keys": ("t.jsonl", '{"text": "a", "text": "b", "label": "x"}\n', "text"),
    "54 deep nesting": ("t.jsonl", '{"text": "a", "label": "x", "more": ' + "[" * 100_000 + "\n", "line 1"),
    "54 1e400": ("t.jsonl", '{"text": "a", "label": 1e400}\n', "line 1"),
    "54 bad escape": ("t.jsonl", '{"text": "a\\q", "label": "x"}\n', "line 1"),
    "54 2^64 label": ("t.jsonl", '{"text": "a", "label": 18446744073709551616}\n', "line 1"),
    "55 text is a number": ("t.jsonl", '{"text": 5, "label": "x"}\n', "line 1"),
    "60 empty label": ("t.csv", "text,label\na,x\nb,\nc,y\n", "line 3"),
    "60 nan label": ("t.csv", "text,label\na,x\nb,nan\nc,y\n", "nan"),
    "60 case variants": ("t.csv", "text,label\na,Yes\nb,yes\nc,no\n", "yes"),
    "60 minus one": ("t.csv", "text,label\na,0\nb,-1\nc,1\n", "-1"),
    "60 one class": ("t.csv", "text,label\na,x\nb,x\n", "class"),
    "60 a float": ("t.jsonl", '{"text": "a", "label": 1.0}\n{"text": "b", "label": 0.5}\n', "line 1"),
    "61 no bytes": ("t.csv", "", "t.csv"),
    "61 header only": ("t.csv", "text,label\n", "t.csv"),
    "61 all texts empty": ("t.csv", "text,label\n,x\n,y\n", "empty"),
    "unknown format": ("t.xlsx", "PK", "xlsx"),
    "not gzip": ("t.csv.gz", "text,label\n", "t.csv.gz"),
    "not zstd": ("t.csv.zst", "text,label\n", "t.csv.zst"),
}

# Accepted: what looks wrong and is not.
GOOD_FILES = {
    "46 quotes": ("t.csv", 'text,label\n"a ""b"", c\nd",x\ne,y', 2),
    "47 TSV has no quoting": ("t.tsv", 'text\tlabel\n"a\tx\nb"\ty\n', 2),
    "51 BOM and CRLF": ("t.csv", b"\xef\xbb\xbftext,label\r\na,x\r\nb,y\r\n", 2),
    "51 CR only": ("t.csv", "text,label\ra,x\rb,y\r", 2),
    "51 NUL and U+2028": ("t.csv", "text,label\na\0b\u2028c,x\nd,y\n", 2),
    "52 blank lines": ("t.jsonl", '\n{"text": "a", "label": "x"}\n\n\n{"text": "b", "label": "y"}\n\n', 2),
}


class BadInput(SnugTest):
    def setUp(self):
        super().setUp()
        self.model = self.init()
        self.data = write_csv(self.path("good.csv"), 20, self.rng)

    def write(self, name, contents):
        path = self.path(name)
        with open(path, "wb") as f:
            f.write(contents if isinstance(contents, bytes) else contents.encode())
        return path

    def train(self, model=None, data=None, flags=(), expect=3):
        start = time.monotonic()
        result = run("train", "--model", model or self.model, "--train", data or self.data, "--max-steps", 1, "--output-dir",
                     self.path("out"), "--overwrite-output-dir", *self.cache(), *flags, expect=expect)
        self.assertLess(time.monotonic() - start, 10)
        return result

    def assert_refused(self, result, words):
        errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, result.err)
        self.assertIn(words, result.err)
        self.assertNotIn("internal error", result.err)
        self.assertFalse(os.path.exists(self.path("out", "model.safetensors")), "something was written")
        self.assertEqual(os.listdir(self.path("out")), [".lock"])

    def broken_model(self, file, contents):
        shutil.rmtree(self.path("broken"), ignore_errors=True)
        shutil.copytree(self.model, self.path("broken"))
        self.write(f"broken/{file}", contents)
        return self.path("broken")

    def test_weight_files(self):
        for name, (contents, words) in WEIGHT_FILES.items():
            with self.subTest(name):
                self.assert_refused(self.train(model=self.broken_model("model.safetensors", contents)), words)

    def test_weights_with_nan(self):
        with open(os.path.join(self.model, "model.safetensors"), "rb") as f:
            contents = bytearray(f.read())
        contents[-8:] = struct.pack("<ff", float("nan"), float("inf"))
        self.assert_refused(self.train(model=self.broken_model("model.safetensors", bytes(contents))), "2")

    def test_shard_index(self):
        cases = {"missing shard": "model-1.safetensors", "outside": "../good.csv", "absolute": "/etc/passwd"}
        for name, file in cases.items():
            with self.subTest(name):
                model = self.broken_model("model.safetensors.index.json", json.dumps(
                    {"metadata": {"total_size": 4}, "weight_map": {"bert.pooler.dense.bias": file}}))
                os.remove(os.path.join(model, "model.safetensors"))
                self.assert_refused(self.train(model=model), file)
        model = self.broken_model("model.safetensors.index.json", "{}")
        shard = os.path.join(model, "model-1.safetensors")
        os.rename(os.path.join(model, "model.safetensors"), shard)
        with open(shard, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        header.pop("__metadata__", None)
        with open(os.path.join(model, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {"total_size": 4}, "weight_map": {name: "model-1.safetensors" for name in header}}, f)
        self.assert_refused(self.train(model=model), "total_size is 4, but the listed tensors take")

    def test_configurations(self):
        for name, (changes, words) in CONFIGS.items():
            with self.subTest(name):
                config = {k: v for k, v in {**GOOD_CONFIG, **changes}.items() if v is not None}
                self.assert_refused(self.train(model=self.broken_model("config.json", json.dumps(config))), words)

    def test_tokenizer_files(self):
        def only_vocab(contents):
            model = self.broken_model("vocab.txt", contents)
            os.remove(os.path.join(model, "tokenizer.json"))
            return model
        specials = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
        for name, contents, words in (("44 empty", "", "vocab.txt"), ("44 duplicate", specials + "a\nb\na\n", "8"),
                                      ("44 blank line", specials + "a\n\nb\n", "7"), ("44 no [UNK]", "[PAD]\na\n", "[UNK]")):
            with self.subTest(name):
                self.assert_refused(self.train(model=only_vocab(contents)), words)
        with open(os.path.join(self.model, "tokenizer.json")) as f:
            good = json.load(f)
        changes = {"42 unknown normalizer": (("normalizer", "type"), "Magic", "Magic"),
                   "42 unknown pre-tokenizer": (("pre_tokenizer", "type"), "Magic", "Magic"),
                   "42 unknown model": (("model", "type"), "Magic", "Magic"),
                   "42 a prefix that is no text": (("model", "continuing_subword_prefix"), 7, "continuing_subword_prefix"),
                   "41 id twice": (("model", "vocab", "[CLS]"), 1, "[CLS]"),
                   "41 id gap": (("model", "vocab", "[MASK]"), 10**6, "1000000")}
        for name, (path, value, words) in changes.items():
            with self.subTest(name):
                broken = json.loads(json.dumps(good))
                inner = broken
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = value
                self.assert_refused(self.train(model=self.broken_model("tokenizer.json", json.dumps(broken))), words)

    def test_data_files(self):
        for name, (file, contents, words) in DATA_FILES.items():
            with self.subTest(name):
                self.assert_refused(self.train(data=self.write(file, contents)), words)

    def test_odd_but_good_files(self):
        for name, (file, contents, rows) in GOOD_FILES.items():
            with self.subTest(name):
                self.assertEqual(run("data", self.write(file, contents), "--json").json()["rows"], rows)

    def test_label_only_in_validation(self):
        validation = self.write("v.csv", "text,label\na,no\nb,maybe\n")
        self.assert_refused(self.train(flags=["--validation", validation]), "maybe")

    def test_paths(self):
        os.mkfifo(self.path("fifo.csv"))
        os.mkdir(self.path("folder.csv"))
        os.symlink(self.path("loop.csv"), self.path("loop.csv"))
        server = socket.socket(socket.AF_UNIX)
        server.bind(self.path("socket.csv"))
        self.addCleanup(server.close)
        os.symlink("/dev/zero", self.path("zero.csv"))
        for name in ("fifo.csv", "folder.csv", "loop.csv", "socket.csv", "zero.csv", "missing.csv", "x" * 4000 + ".csv"):
            with self.subTest(name[:20]):
                self.assert_refused(self.train(data=self.path(name)), name[:20])
        self.assert_refused(self.train(model=self.path("nowhere")), "nowhere")

    def test_budgets(self):
        for size, code, words in (("0", 4, "least that works"), ("1MiB", 4, "least that works"), ("-5", 2, "-5"), ("nan", 2, "nan"),
                                  ("8bananas", 2, "8bananas")):
            with self.subTest(size):
                result = self.train(flags=[f"--memory={size}"], expect=code)
                self.assertIn(words, result.err)
        refused = run("plan", "--model", self.model, "--train", self.data, "--memory", "1MiB", "--json", *self.cache(), expect=4)
        self.assertGreater(refused.json()["minimum_budget_bytes"], 1 << 20)

    def test_usage(self):
        for flags, words in ((["--batch-size", "0"], "--batch-size"), (["--learning-rate", "-1"], "--learning-rate"),
                             (["--no-such-flag"], "no-such-flag"), (["--lr-scheduler-type", "zigzag"], "zigzag"),
                             (["--recompute", "99"], "99"), (["--max-length", "65"], "65"), (["--task", "sing"], "sing"),
                             (["--load-best-model-at-end"], "--validation"), (["--eval-strategy", "epoch"], "--validation")):
            with self.subTest(flags[0]):
                self.assertIn(words, self.train(flags=flags, expect=2).err)

    def test_predictions_that_fail_at_once_write_nothing(self):
        trained = self.path("trained")
        run("train", "--model", self.model, "--train", self.data, "--max-steps", 1, "--output-dir", trained, *self.cache())
        broken = self.path("broken")
        shutil.copytree(trained, broken)
        os.truncate(os.path.join(broken, "model.safetensors"), 100)
        good = self.write("texts.csv", "text\na\n")
        for model, flags, code in ((trained, ["--input", self.path("missing.csv")], 3), (trained, ["--input", good, "--n-best-size", 0], 2),
                                   (trained, ["--input", good, "--text-column", "other"], 3), (broken, ["--input", good], 3),
                                   (trained, ["--input", good, "--memory", "1MiB"], 4)):
            with self.subTest(flags):
                self.assertEqual(run("predict", "--model", model, *flags, "--json", expect=code).out, "")
        self.assertEqual(run("predict", "--model", trained, "--input", self.write("none.csv", "text\n"), "--json").json(), {"predictions": []})

    def test_devices(self):
        """Of the build for the CPU: GPUs can be planned for, not run on."""
        plan = ["plan", "--model", self.model, "--train", self.data, *self.cache()]
        for flags, code, words in ((["--device", "cuda"], 8, "make cuda"), (["--device", "cuda:7"], 8, "cuda:7"),
                                   (["--device", "tpu"], 2, "tpu"), (["--precision", "bf16"], 2, "fp32"),
                                   (["--device-profile", "abacus"], 2, "rtx3060-12gb"),
                                   (["--device-profile", "t4", "--precision", "bf16"], 8, "bf16"),
                                   (["--device-profile", "t4", "--memory", "99GiB"], 4, "15.00 GiB"),
                                   (["--device-profile", "t4", "--memory", "100MiB"], 4, "least that works"),
                                   (["--device-profile", self.write("p.json", "{}")], 3, "memory_bytes")):
            with self.subTest(" ".join(flags)[:60]):
                refused = run(*plan, *flags, expect=code)
                self.assertIn(words, refused.err + refused.out)
        profile = self.write("card.json", json.dumps({"name": "mine", "memory_bytes": 4 << 30, "overhead_bytes": 300 << 20}))
        good = run(*plan, "--device-profile", profile, "--json").json()
        self.assertEqual((good["device"], good["precision"], good["overhead_bytes"]), ("mine", "bf16", 300 << 20))

    def test_paths_that_are_not_utf8(self):
        data = os.fsdecode(os.fsencode(self.path("")) + b"caf\xe9.csv")
        shutil.copy(self.data, data)
        self.assertEqual(run("data", data, "--json").json()["rows"], run("data", self.data, "--json").json()["rows"])

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_a_file_that_may_not_be_read(self):
        secret = self.write("secret.csv", "text,label\na,b\n")
        os.chmod(secret, 0)
        self.assert_refused(self.train(data=secret), "secret.csv")


if __name__ == "__main__":
    unittest.main()

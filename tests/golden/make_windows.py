"""Makes pieces/qa-windows.json beside it: for each question of the shared tokenizer-golden/hf-tokenizers/qa.jsonl, how many windows
(128 tokens, stride 64, only the context cut) Hugging Face's tokenizers library makes of it, and a hash of their ids, type_ids and
offsets. Version 0.23.3 on; the vectors that lie with the questions were made by one that lost the windows of long contexts.

    python3 tests/golden/make_windows.py FOLDER      (FOLDER holds data/vocabs and data/tokenizer-golden; needs tokenizers)
"""
import json
import os
import sys

from tokenizers import Tokenizer

DATA = os.path.join(sys.argv[1], "data")
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pieces", "qa-windows.json")


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return "%016x" % value


def main():
    result = {}
    for model in ("bert-base-uncased", "roberta-base"):
        tokenizer = Tokenizer.from_file(os.path.join(DATA, "vocabs", model, "tokenizer.json"))
        tokenizer.enable_truncation(128, stride=64, strategy="only_second")
        rows = []
        with open(os.path.join(DATA, "tokenizer-golden/hf-tokenizers/qa.jsonl")) as questions:
            for line in questions:
                question = json.loads(line)
                first = tokenizer.encode(question["question"], question["context"])
                windows = [{"ids": w.ids, "offsets": w.offsets, "type_ids": w.type_ids} for w in [first] + first.overflowing]
                rows.append([len(windows), fnv1a(json.dumps(windows, separators=(",", ":")))])
        result[model] = rows
    with open(OUT, "w") as out:
        out.write(json.dumps(result, separators=(",", ":")).replace("]],", "]],\n") + "\n")


if __name__ == "__main__":
    main()

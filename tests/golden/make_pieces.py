"""Makes the folder pieces/ beside it: a small SentencePiece model with ALBERT's special tokens (spiece.model), the same
as a tokenizer.json of the kind that transformers wrote for ALBERT, and what Hugging Face's tokenizers library says about
texts (texts.jsonl: text, ids, offsets in code points, type_ids; the last ones are pairs).

    python3 tests/golden/make_pieces.py      (needs tokenizers 0.23, sentencepiece 0.2 and protobuf; snug's tests do not)
"""
import base64
import json
import os
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pieces")
MODEL = os.path.join(FOLDER, "spiece.model")
WORDS = ("the quick brown fox jumps over the lazy dog, and in 1999, or 2000, she paid 1,000 euros for 9, 12, 24 pieces. "
         "words are divided into pieces (subwords), and pieces make words again. hello world, hello there, hello again! "
         "unaffable people were walking, talking and thinking of other things; they thought, therefore they were. "
         "a number is a number, a word is a word, and this is the end of the text. what's new? it's all new, isn't it? ")
# SentencePiece's own rules fill 240 kB; these are of each kind: fewer, as many and more characters, spaces, nothing.
RULES = {"\u00A0": " ", "\t": " ", "\n": " ", "\r": " ", "\u2581": " ", "\u200B": " ", "\uFB01": "fi", "\u00BD": "1/2",
         "\u0001": "", "\u0007": "", "\uFF21": "A", "e\u0301": "\u00E9", "\u2026": "...", "\u3000": " ", "\u2019": "'"}
TEXTS = [
    "", " ", "hello", "Hello  World", "The quick brown fox.", "unaffable", "walking, talking & thinking",
    "1,000 9, 12,24, 2000, (1999,)", "\u20AC5 or \u00A35", "``quoted'' it''s", "H\u00E9llo W\u00F6rld e\u0301t\u00E9", "\uFB01ve \u00BD \uFF21 pieces\u2026",
    "a\u0001b \u0001c", "\u0001start", "tab\tnew\nline\r\nend  ", " \u00A0 spaces \u3000 around \u200B", "\u2581This \u2581is a\u2581b", "[MASK] of [SEP] text[CLS]",
    "a [MASK]b", "unknown \u4E2D\u6587 \u4E2D characters \U0001F600\U0001F600!", "combining o\u0308\u0323 marks \u0327", "\u1E9B\u0323 \uAC00\u11A8", "what\u2019s new?",
    "I\u0130\u01C5 UPPER", "9,", "9,9", "x9, y", "the end of the text. " * 12, "<unk> <pad> <s>", "x" * 40, "\u00AD\u200Dzero\u200C",
]
PAIRS = [("hello world", "the fox"), ("", "x"), ("a number, a word", "12, 24"), ("What's new?", "")]


def train():
    with tempfile.TemporaryDirectory() as folder:
        rules = os.path.join(folder, "rules.tsv")
        with open(rules, "w") as out:
            for key, value in RULES.items():
                out.write("%s\t%s\n" % (" ".join("%X" % ord(c) for c in key), " ".join("%X" % ord(c) for c in value)))
        text = os.path.join(folder, "text.txt")
        with open(text, "w") as out:
            out.write("\n".join(WORDS.split(". ")) + "\n" + WORDS.upper().lower() + "\n")
        sentencepiece.SentencePieceTrainer.train(
            input=text, model_prefix=os.path.join(folder, "m"), vocab_size=230, hard_vocab_limit=False,
            normalization_rule_tsv=rules, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece="<pad>", unk_piece="<unk>",
            control_symbols="[CLS],[SEP],[MASK]", user_defined_symbols="(,),.,\u20AC,\u00A3", character_coverage=1.0, minloglevel=3)
        proto = sentencepiece_model_pb2.ModelProto()
        proto.ParseFromString(open(os.path.join(folder, "m.model"), "rb").read())
    known = {piece.piece for piece in proto.pieces}
    for text in sorted({"\u258112,", "\u25819,", "9,"} - known):  # numbers with commas, which the trainer mostly keeps apart
        proto.pieces.add(piece=text, score=-2.0)
    proto.trainer_spec.ClearField("input")  # paths of the day
    proto.trainer_spec.ClearField("model_prefix")
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    with open(MODEL, "wb") as out:
        out.write(proto.SerializeToString())
    return proto


def reference(proto):
    """Of ALBERT's numbers the comma must be a piece of its own: the pieces that join them get a forbidding score."""
    def score(piece):
        text = piece.piece
        return piece.score - (100 if len(text) > 1 and text[-1] == "," and text[-2].isdigit() else 0)

    def added(name, **flags):
        index = next(i for i, piece in enumerate(proto.pieces) if piece.piece == name)
        return dict({"id": index, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                     "special": True}, **flags)

    def special(name, type_id):
        return {"SpecialToken": {"id": name, "type_id": type_id}}

    def sequence(name, type_id):
        return {"Sequence": {"id": name, "type_id": type_id}}

    names = {name: added(name)["id"] for name in ("[CLS]", "[SEP]")}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": sorted([added(n) for n in ("<pad>", "<unk>", "[CLS]", "[SEP]")] + [added("[MASK]", lstrip=True)],
                               key=lambda token: token["id"]),
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
            {"type": "Replace", "pattern": {"String": "''"}, "content": '"'},
            {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
            {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0)],
            "pair": [special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0), sequence("B", 1), special("[SEP]", 1)],
            "special_tokens": {n: {"id": n, "ids": [names[n]], "tokens": [n]} for n in names}},
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 1, "vocab": [[p.piece, score(p)] for p in proto.pieces], "byte_fallback": False},
    }


def main():
    os.makedirs(FOLDER, exist_ok=True)
    document = json.dumps(reference(train()), ensure_ascii=False, indent=1)
    with open(os.path.join(FOLDER, "tokenizer.json"), "w") as out:
        out.write(document + "\n")
    tokenizer = Tokenizer.from_str(document)
    with open(os.path.join(FOLDER, "texts.jsonl"), "w") as out:
        for text in TEXTS + PAIRS:
            found = tokenizer.encode(*text) if isinstance(text, tuple) else tokenizer.encode(text)
            row = {"text": text[0], "pair": text[1]} if isinstance(text, tuple) else {"text": text}
            out.write(json.dumps(dict(row, ids=found.ids, type_ids=found.type_ids, offsets=found.offsets)) + "\n")


if __name__ == "__main__":
    main()

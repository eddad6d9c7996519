"""Adapters between snug and PEFT: a model trained with --lora-rank loads in PEFT and gives the same numbers, snug merge gives
them too, and ten losses agree when PEFT trains from the same start. Needs torch, transformers and peft, so it is not part of
make test.

    python3 tests/reference/lora.py build/bin/snug"""
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from harness import sentence, write_csv

SNUG = sys.argv[1]


def snug(*args):
    done = subprocess.run([SNUG, *map(str, args)], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"snug {' '.join(map(str, args))} ended with {done.returncode}")
    return done.stdout


def with_adapter(base, folder):
    """As a user of PEFT loads it; nothing may be missing in its files."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*missing.*")
        return PeftModel.from_pretrained(base, folder).eval()


def classification(folder, model_type, targets, *flags):
    rng = random.Random(1)
    data = write_csv(os.path.join(folder, "train.csv"), 300, rng, longest=20, labels=("a", "b", "c"))
    model, out, merged = (os.path.join(folder, name) for name in ("model", "out", "merged"))
    snug("init", "--model-type", model_type, "--train", data, "--vocab-size", 400, "--hidden-size", 64, "--num-hidden-layers", 2,
         "--num-attention-heads", 4, "--output-dir", model)
    snug("train", "--model", model, "--train", data, "--batch-size", 16, "--max-steps", 40, "--learning-rate", 5e-3, "--lora-rank", 4,
         "--lora-alpha", 16, "--lora-dropout", 0.1, "--lora-target-modules", targets, "--output-dir", out, "--task", "classify",
         "--save-strategy", "no", "--cache-dir", os.path.join(folder, "cache"), *flags)
    snug("merge", "--adapter", out, "--output-dir", merged)
    labels = json.load(open(os.path.join(out, "config.json")))["id2label"]
    base = AutoModelForSequenceClassification.from_pretrained(model, num_labels=len(labels))
    theirs = with_adapter(base, out)
    plain = AutoModelForSequenceClassification.from_pretrained(merged).eval()
    tokenizer = AutoTokenizer.from_pretrained(merged)
    worst = {"PEFT": 0.0, "snug predict of the adapter": 0.0}
    for _ in range(20):
        text = sentence(rng, 20)
        batch = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            want = torch.log_softmax(plain(**batch).logits[0], -1)
            got = torch.log_softmax(theirs(**batch).logits[0], -1)
        worst["PEFT"] = max(worst["PEFT"], (want - got).abs().max().item())
        ours = json.loads(snug("predict", "--model", out, "--text", text, "--json"))
        ours = torch.log(torch.tensor([ours["scores"][labels[str(i)]] for i in range(len(labels))]))
        worst["snug predict of the adapter"] = max(worst["snug predict of the adapter"], (want - ours).abs().max().item())
    trained = load_file(os.path.join(out, "adapter_model.safetensors"))
    moved = sum(tensor.abs().sum().item() > 0 for name, tensor in trained.items() if "lora_B" in name)
    assert moved == sum("lora_B" in name for name in trained), "an adapter was not trained"
    print(f"{model_type} {targets} {flags}: largest difference of log-probabilities to the merged model: {worst}")
    assert max(worst.values()) < 2e-5


def language(folder, model_type, *flags):
    auto, task = (AutoModelForCausalLM, "clm") if model_type == "gpt2" else (AutoModelForMaskedLM, "mlm")
    text = os.path.join(folder, "text.txt")
    rng = random.Random(2)
    with open(text, "w") as f:
        f.write("\n".join(sentence(rng, 12) for _ in range(400)))
    model, out, merged = (os.path.join(folder, name) for name in ("model", "out", "merged"))
    snug("init", "--model-type", model_type, "--train", text, "--vocab-size", 400 if model_type != "bert" else 200, "--hidden-size", 64,
         "--num-hidden-layers", 2, "--num-attention-heads", 4, "--output-dir", model)
    snug("train", "--model", model, "--train", text, "--task", task, "--batch-size", 8, "--max-steps", 30, "--learning-rate", 5e-3,
         "--lora-rank", 8, "--output-dir", out, "--save-strategy", "no", "--cache-dir", os.path.join(folder, "cache"), *flags)
    snug("merge", "--adapter", out, "--output-dir", merged)
    theirs = with_adapter(auto.from_pretrained(model), out)
    plain = auto.from_pretrained(merged).eval()
    ids = AutoTokenizer.from_pretrained(merged)(sentence(rng, 30), return_tensors="pt")["input_ids"]
    with torch.no_grad():
        worst = (torch.log_softmax(theirs(ids).logits, -1) - torch.log_softmax(plain(ids).logits, -1)).abs().max().item()
    print(f"{model_type} {task} {flags}: largest difference of log-probabilities between PEFT and the merged model: {worst}")
    assert worst < 2e-5


def losses(folder):
    """Dropout off, the whole data in one batch: ten steps of AdamW from the same start."""
    rng = random.Random(3)
    data = write_csv(os.path.join(folder, "train.csv"), 16, rng, longest=20)
    model, out = (os.path.join(folder, name) for name in ("model", "out"))
    snug("init", "--train", data, "--vocab-size", 300, "--hidden-size", 64, "--num-hidden-layers", 2, "--num-attention-heads", 4,
         "--output-dir", model)

    def train(name, steps, rate):
        flags = ["--model", model, "--train", data, "--batch-size", 16, "--max-steps", steps, "--learning-rate", rate, "--dropout", 0,
                 "--lr-scheduler-type", "constant", "--lora-rank", 4, "--output-dir", os.path.join(folder, name), "--save-strategy", "no"]
        snug("train", *flags, "--cache-dir", os.path.join(folder, "cache"))
        with open(os.path.join(folder, name, "metrics.jsonl")) as f:
            return [json.loads(line)["loss"] for line in f]

    train("start", 1, 0)  # the adapters and the head as they begin
    ours = train("out", 10, 1e-3)
    config = json.load(open(os.path.join(folder, "start", "config.json")))
    base = AutoModelForSequenceClassification.from_pretrained(model, num_labels=2, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    peft = PeftModel.from_pretrained(base, os.path.join(folder, "start"), is_trainable=True).train()
    rows = [line.rstrip("\n").split(",") for line in open(data)][1:]
    label_ids = {name: int(i) for i, name in config["id2label"].items()}
    batch = AutoTokenizer.from_pretrained(os.path.join(folder, "start"))([text for text, _ in rows], return_tensors="pt", padding=True)
    labels = torch.tensor([label_ids[label] for _, label in rows])
    optimizer = torch.optim.AdamW([p for p in peft.parameters() if p.requires_grad], lr=1e-3, weight_decay=0)
    theirs = []
    for _ in range(10):
        loss = peft(**batch, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in peft.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        theirs.append(loss.item())
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs))
    print(f"ten losses against PEFT: largest relative difference {worst:.1e}; {ours[0]:.4f} -> {ours[-1]:.4f}")
    assert worst < 1e-4


CASES = [(classification, "bert", "query,value,dense"), (classification, "roberta", "query,value,dense"),
         (classification, "bert", "all-linear"), (classification, "roberta", "all-linear"), (classification, "gpt2", "all-linear"),
         (classification, "roberta", "query", "--freeze", "classifier.dense"),
         (language, "gpt2", "--block-size", 64), (language, "gpt2", "--block-size", 64, "--lora-target-modules", "all-linear"),
         (language, "bert"), (language, "roberta"), (language, "bert", "--lora-target-modules", "all-linear"),
         (language, "roberta", "--freeze", "lm_head.dense"), (losses,)]
for case, *arguments in CASES:
    with tempfile.TemporaryDirectory() as folder:
        case(folder, *arguments)

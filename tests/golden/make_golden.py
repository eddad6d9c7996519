"""Makes the folders beside it: tiny models with random weights, and what PyTorch and transformers say about them in fp64:
logits, the gradient of every parameter for the first batch, the losses of ten AdamW steps without dropout, and for GPT-2
200 tokens written greedily. Folders named distilled-* hold students of these models that learn from other ones: the
losses of ten steps, and of each parameter's first gradient the norm and a weighted sum.

    python3 tests/golden/make_golden.py [name ...]      (needs torch 2.13 and transformers 5; snug's tests do not)
"""
import json
import os
import random
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import (BertConfig, BertForMaskedLM, BertForSequenceClassification, DistilBertConfig, DistilBertForMaskedLM,
                          DistilBertForSequenceClassification, GPT2Config, GPT2LMHeadModel, RobertaConfig, RobertaForMaskedLM,
                          RobertaForSequenceClassification)

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, LABELS, VOCAB, POSITIONS = 10, 3, 97, 40
LENGTHS = [1, 2, 5, 17, 33, 40, 8]
ADAM = dict(lr=2e-3, betas=(0.9, 0.999), eps=1e-8)
WEIGHT_DECAY, CLIP = 0.01, 1.0
ENCODER = dict(vocab_size=VOCAB, hidden_size=36, num_hidden_layers=3, num_attention_heads=4, intermediate_size=68,
               hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.15,
               attn_implementation="eager")
ROBERTA = dict(ENCODER, max_position_embeddings=POSITIONS + 2, type_vocab_size=1, layer_norm_eps=1e-5)
DISTILBERT = dict(vocab_size=VOCAB, dim=36, n_layers=3, n_heads=4, hidden_dim=68, max_position_embeddings=POSITIONS, dropout=0.0,
                  attention_dropout=0.0, seq_classif_dropout=0.0, initializer_range=0.15, attn_implementation="eager")

# name: (class, configuration, what is predicted)
MODELS = {
    "bert-tiny": (BertForSequenceClassification,
                  lambda: BertConfig(max_position_embeddings=POSITIONS, num_labels=LABELS, **ENCODER), "label"),
    "bert-mlm-tiny": (BertForMaskedLM, lambda: BertConfig(max_position_embeddings=POSITIONS, **ENCODER), "masked"),
    "roberta-tiny": (RobertaForSequenceClassification, lambda: RobertaConfig(num_labels=LABELS, **ROBERTA), "label"),
    "roberta-mlm-tiny": (RobertaForMaskedLM, lambda: RobertaConfig(**ROBERTA), "masked"),
    "distilbert-tiny": (DistilBertForSequenceClassification,
                        lambda: DistilBertConfig(num_labels=LABELS, **DISTILBERT), "label"),
    "distilbert-mlm-tiny": (DistilBertForMaskedLM, lambda: DistilBertConfig(activation="relu", **DISTILBERT), "masked"),
    "gpt2-tiny": (GPT2LMHeadModel,
                  lambda: GPT2Config(vocab_size=VOCAB, n_embd=36, n_layer=3, n_head=4, n_inner=68, n_positions=256,
                                     embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.15,
                                     bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1, attn_implementation="eager"), "next"),
}


# name: (student, teacher, temperature, the teacher's share of the loss)
DISTILLED = {
    "distilled-bert-tiny": ("bert-tiny", "roberta-tiny", 2.0, 0.5),
    "distilled-bert-mlm-tiny": ("bert-mlm-tiny", "roberta-mlm-tiny", 4.0, 0.75),
    "distilled-gpt2-tiny": ("gpt2-tiny", "gpt2-tiny", 2.0, 0.5),
}


def make_model(cls, config):
    model = cls(config)
    with torch.no_grad():  # no zeros and ones: biases and norms must matter
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.1)
    return model


def make_row(n, kind, types):
    split = random.randrange(1, n + 1)
    first = 2 if not types else 0  # RoBERTa gives its padding token, 1, no position
    row = dict(ids=[random.randrange(first, VOCAB) for _ in range(n)])
    row["type_ids"] = [0] * split + [1] * (n - split) if types else [0] * n
    if kind == "label":
        row["label"] = random.randrange(LABELS)
    elif kind == "next":
        row["target_rows"], row["target_ids"] = list(range(n - 1)), row["ids"][1:]
    else:
        row["target_rows"] = sorted(random.sample(range(n), (n + 3) // 4))
        row["target_ids"] = [random.randrange(VOCAB) for _ in row["target_rows"]]
    return row


def logits_of(model, row, kind):
    inputs = dict(input_ids=torch.tensor([row["ids"]]))
    if kind != "next" and model.config.model_type != "distilbert":
        inputs["token_type_ids"] = torch.tensor([row["type_ids"]])
    logits = model(**inputs).logits
    return logits if kind == "label" else logits[0][row["target_rows"]]


def loss_and_logits(model, rows, kind):
    logits = torch.cat([logits_of(model, r, kind) for r in rows])  # one at a time: no padding anywhere
    targets = [r["label"] for r in rows] if kind == "label" else [t for r in rows for t in r["target_ids"]]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(targets)), logits


def make(name):
    cls, make_config, kind = MODELS[name]
    out = os.path.join(HERE, name)
    torch.manual_seed(1)
    random.seed(1)
    model = make_model(cls, make_config()).eval()
    os.makedirs(out, exist_ok=True)
    model.save_pretrained(out)
    model = model.double()
    types = name.startswith("bert")
    batches = [[make_row(n, kind, types) for n in LENGTHS] for _ in range(STEPS)]
    extra = {}
    if kind == "next":
        prompt = batches[0][3]["ids"]
        with torch.no_grad():
            written = model.generate(torch.tensor([prompt]), max_new_tokens=200, do_sample=False, eos_token_id=None,
                                     pad_token_id=0)
        extra = dict(prompt=prompt, greedy=written[0, len(prompt):].tolist())

    loss, logits = loss_and_logits(model, batches[0], kind)
    loss.backward()
    expected = {"logits": logits.detach()}
    expected.update({"gradient." + k: p.grad.clone() for k, p in model.named_parameters()})
    save_file({k: v.float().contiguous() for k, v in expected.items()}, os.path.join(out, "expected.safetensors"))

    steps = train(model, batches, lambda rows: loss_and_logits(model, rows, kind)[0])
    with open(os.path.join(out, "steps.json"), "w") as f:
        json.dump(dict(steps, batches=batches, **extra), f)
    print(name, steps["losses"])


def train(model, batches, loss_of):
    is_plain = lambda k: k.endswith("bias") or "LayerNorm" in k or "layer_norm" in k or ".ln_" in k
    plain = [p for k, p in model.named_parameters() if is_plain(k)]
    decayed = [p for k, p in model.named_parameters() if not is_plain(k)]
    optimizer = torch.optim.AdamW([dict(params=decayed, weight_decay=WEIGHT_DECAY), dict(params=plain, weight_decay=0.0)],
                                  **ADAM)
    losses, norms = [], []
    for rows in batches:
        optimizer.zero_grad()
        loss = loss_of(rows)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    return dict(learning_rate=ADAM["lr"], beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=WEIGHT_DECAY,
                max_grad_norm=CLIP, losses=losses, gradient_norms=norms)


def make_distilled(name):
    student_name, teacher_name, temperature, alpha = DISTILLED[name]
    load = lambda model: MODELS[model][0].from_pretrained(os.path.join(HERE, model), attn_implementation="eager").eval().double()
    student, teacher, kind = load(student_name), load(teacher_name), MODELS[student_name][2]
    random.seed(2)
    batches = [[make_row(n, kind, types=False) for n in LENGTHS] for _ in range(STEPS)]

    def loss_of(rows):
        loss, logits = loss_and_logits(student, rows, kind)
        with torch.no_grad():
            _, taught = loss_and_logits(teacher, rows, kind)
        divergence = F.kl_div(F.log_softmax(logits / temperature, -1), F.softmax(taught / temperature, -1), reduction="batchmean")
        return (1 - alpha) * loss + alpha * temperature ** 2 * divergence

    loss_of(batches[0]).backward()
    weighted_sum = lambda g: (g.flatten() * torch.cos(torch.arange(g.numel(), dtype=g.dtype))).sum().item()
    gradients = {k: [p.grad.norm().item(), weighted_sum(p.grad)] for k, p in student.named_parameters()}
    steps = train(student, batches, loss_of)
    os.makedirs(os.path.join(HERE, name), exist_ok=True)
    with open(os.path.join(HERE, name, "steps.json"), "w") as f:
        json.dump(dict(steps, student=student_name, teacher=teacher_name, temperature=temperature, alpha=alpha,
                       gradients=gradients, batches=batches), f)
    print(name, steps["losses"])


if __name__ == "__main__":
    for name in sys.argv[1:] or [*MODELS, *DISTILLED]:
        make_distilled(name) if name in DISTILLED else make(name)

"""P11: training steps of known networks, compute played by a timer, against the fluid priority schedule."""
from context import guarded
from row import Row

IDS = ("P11",)
RATE = "1gbit"
WORKERS = 2  # and as many servers: two cores keep up with their links and have time left
# Large networks' tensors and times are scaled so that a step takes seconds.
SCALES = {"resnet50": 1, "vgg16": 0.4, "bert-large": 0.2, "gpt2-small": 0.4}


def measure(context):
    if not context.wants("P11"):
        return []
    rows = []
    for model in ("resnet50",) if context.quick else SCALES:
        for compute in (0.5, 1, 2):
            scale = SCALES[model]
            name = model if scale == 1 else f"{model} x {scale}"
            row = Row("P11", f"replayed step of {name}, compute {compute} t*, n=k={WORKERS}, {RATE} links, against the "
                      "fluid schedule", 1.15, 1.05, more=False)
            rows.append(row)
            guarded([row], lambda: run(context, model, scale, compute, row))
    return rows


def run(context, model, scale, compute, row):
    with context.lab(2, RATE) as lab:
        goodput = lab.goodput()
    lines = context.bench("replay", "--model", model, "--scale", scale, "--compute", compute, "--priority", "on",
                          "--workers", WORKERS, "--servers", WORKERS, "--link", RATE, "--goodput",
                          f"{goodput * 8:.0f}bit", "--iters", 3 if context.quick else 5)
    row.median = lines.ratio("replay[priority]/fluid", "seconds")
    line = lines.of("replay", priority=True)
    row.note = f"{line['iteration_s']:.3f} s, fluid {line['fluid_s']:.3f} s, CPU idle {line['idle']:.0%}"
    row.wrong = context.wrong_control("bps")

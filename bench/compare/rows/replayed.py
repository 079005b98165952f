"""P11: training steps of known networks, compute played by a timer, against the fluid priority schedule."""
from context import Goodput, guarded, too_busy
from row import Row

IDS = ("P11",)
RATE = "1gbit"
MOST_MOVED = 0.02  # of G, from before a row to after it
WORKERS = 2  # and as many servers: two cores keep up with their links and have time left
# Large networks' tensors and times are scaled so that a step takes seconds.
SCALES = {"resnet50": 1, "vgg16": 0.4, "bert-large": 0.2, "gpt2-small": 0.4}


def measure(context):
    if not context.wants("P11"):
        return []
    rows, goodput = [], Goodput(context, RATE)
    for model in ("resnet50",) if context.quick else SCALES:
        for compute in (0.5, 1, 2):
            scale = SCALES[model]
            name = model if scale == 1 else f"{model} x {scale}"
            row = Row("P11", f"replayed step of {name}, compute {compute} t*, n=k={WORKERS}, {RATE} links, against the "
                      "fluid schedule", 1.15, 1.05, more=False)
            rows.append(row)
            guarded([row], lambda: run(context, model, scale, compute, row, goodput))
    return rows


def run(context, model, scale, compute, row, goodput):
    before = goodput.before()
    lines = context.bench("replay", "--model", model, "--scale", scale, "--compute", compute, "--priority", "on",
                          "--workers", WORKERS, "--servers", WORKERS, "--link", RATE, "--goodput",
                          f"{before * 8:.0f}bit", "--iters", 3 if context.quick else 5)
    row.median = lines.ratio("replay[priority]/fluid", "seconds")
    line = lines.of("replay", priority=True)
    row.note = f"{line['iteration_s']:.3f} s, fluid {line['fluid_s']:.3f} s, CPU idle {line['idle']:.0%}"
    row.wrong = too_busy(line["idle"]) or moved(before, goodput.after()) or context.wrong_control("bps")


def moved(before, after):
    """Why the fluid schedule, which was computed with the G from before, is not the one to compare with."""
    if abs(after - before) <= MOST_MOVED * before:
        return ""
    return f"G was {before * 8e-6:.1f} Mbit/s before and {after * 8e-6:.1f} after"

"""A line of the table: one number, and whether it is good enough."""
import dataclasses
import math


class NotMeasured(Exception):
    """Why there is no number. The row counts as not passed."""


@dataclasses.dataclass
class Median:
    """Of repeated measurements, with a 95 % confidence interval from order statistics.

    The number of values below the true median is binomial(n, 1/2), whatever the distribution. With fewer than six
    values no interval is that sure: then it is all of them.
    """
    value: float
    low: float
    high: float
    least: float
    most: float

    @staticmethod
    def of(values):
        values = sorted(values)
        n = len(values)
        if not n:
            raise NotMeasured("nothing was measured")
        skip, below = 0, 0.0
        while skip < n // 2:
            below += math.comb(n, skip) * 0.5**n
            if 2 * below > 0.05:
                break
            skip += 1
        skip = max(skip - 1, 0)
        middle = (values[(n - 1) // 2] + values[n // 2]) / 2
        return Median(middle, values[skip], values[n - 1 - skip], values[0], values[-1])

    @staticmethod
    def exactly(value):
        return Median(value, value, value, value, value)


@dataclasses.dataclass
class Row:
    """`more`: more is better. A floor holds when it holds at the worse end of the interval, a goal when the median
    reaches it."""
    id: str
    what: str
    floor: float
    goal: float
    more: bool
    median: Median = None
    unit: str = ""
    note: str = ""
    missing: str = ""  # why there is no median
    wrong: str = ""  # why the number does not count: a wrong sum, another congestion control

    def at_least_as_good(self, value, limit):
        return value >= limit if self.more else value <= limit

    @property
    def passed(self):
        if self.median is None or self.wrong:
            return False
        return self.at_least_as_good(self.median.low if self.more else self.median.high, self.floor)

    @property
    def reached(self):
        return self.passed and self.at_least_as_good(self.median.value, self.goal)

    def as_json(self):
        number = lambda name: None if self.median is None else round(getattr(self.median, name), 4)
        return {"id": self.id, "what": self.what, "value": number("value"), "floor": self.floor, "goal": self.goal,
                "pass": self.passed, "goal_reached": self.reached, "better": "more" if self.more else "less",
                "unit": self.unit, "low": number("low"), "high": number("high"), "min": number("least"),
                "max": number("most"), "note": self.note, "not_measured": self.missing, "wrong": self.wrong}


def verdict(row):
    if row.reached:
        return "goal"
    if row.passed:
        return "floor"
    why = row.wrong
    if not why and row.median and row.at_least_as_good(row.median.value, row.floor):
        why = f"its interval reaches {text_of(row.median.low if row.more else row.median.high)}"
    return f"**no**{': ' + why if why else ''}"


def text_of(value):
    """Three digits that mean something."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def table(rows):
    """Markdown."""
    lines = ["| # | what | value | 95 % interval | min - max | floor | goal | passed |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        sign, unit = ("≥" if row.more else "≤"), (f" {row.unit}" if row.unit else "")
        limits = [f"{sign} {text_of(limit)}{unit}" for limit in (row.floor, row.goal)]
        if row.median is None:
            cells = [f"not measured: {row.missing}", "", ""]
        else:
            m = row.median
            cells = [text_of(m.value) + unit, "" if m.low == m.high else f"{text_of(m.low)} - {text_of(m.high)}",
                     "" if m.least == m.most else f"{text_of(m.least)} - {text_of(m.most)}"]
        what = row.what + (f" ({row.note})" if row.note else "")
        lines.append("| " + " | ".join([row.id, what, *cells, *limits, verdict(row)]) + " |")
    return "\n".join(lines) + "\n"


def summary(rows):
    """One line: which numbers hold."""
    ids = list(dict.fromkeys(row.id for row in rows))
    of = lambda test: [id for id in ids if all(test(row) for row in rows if row.id == id)]
    floors, goals = of(lambda row: row.passed), of(lambda row: row.reached)
    counts = lambda row: row.median is not None and not row.wrong
    below = of(lambda row: row.passed or counts(row))
    failed = [id for id in ids if id not in floors and id in below]
    unknown = [id for id in ids if id not in below]
    text = f"{len(floors)} of {len(ids)} numbers at or above their floor, {len(goals)} at their goal"
    text += f"; below: {', '.join(failed)}" if failed else ""
    return text + (f"; no number that counts: {', '.join(unknown)}" if unknown else "")

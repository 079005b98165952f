"""A PNG of a curve, with nothing but the standard library."""
import struct
import zlib
from typing import List, Sequence

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE = 640, 360, 40, 24, 10
_WHITE, _GREY, _BLACK, _BLUE = (255, 255, 255), (215, 215, 215), (40, 40, 40), (31, 95, 191)
# Five rows of three bits for each digit.
_FONT = {"0": (7, 5, 5, 5, 7), "1": (2, 6, 2, 2, 7), "2": (7, 1, 7, 4, 7), "3": (7, 1, 7, 1, 7), "4": (5, 5, 7, 1, 1),
         "5": (7, 4, 7, 1, 7), "6": (7, 4, 7, 5, 7), "7": (7, 1, 1, 2, 2), "8": (7, 5, 7, 5, 7), "9": (7, 5, 7, 1, 7)}


class _Picture:
    def __init__(self) -> None:
        self.rows: List[bytearray] = [bytearray(bytes(_WHITE) * _WIDTH) for _ in range(_HEIGHT)]

    def dot(self, x: int, y: int, color: Sequence[int]) -> None:
        if 0 <= x < _WIDTH and 0 <= y < _HEIGHT:
            self.rows[y][3 * x:3 * x + 3] = bytes(color)

    def line(self, x0: float, y0: float, x1: float, y1: float, color: Sequence[int]) -> None:
        steps = max(1, int(max(abs(x1 - x0), abs(y1 - y0)) * 2))
        for i in range(steps + 1):
            self.dot(round(x0 + (x1 - x0) * i / steps), round(y0 + (y1 - y0) * i / steps), color)

    def number(self, x: int, y: int, value: int) -> None:
        """Twice as large as the font."""
        for position, digit in enumerate(str(value)):
            for row, bits in enumerate(_FONT[digit]):
                for column in range(3):
                    if bits & (4 >> column):
                        for dx, dy in ((0, 0), (0, 1), (1, 0), (1, 1)):
                            self.dot(x + 8 * position + 2 * column + dx, y + 2 * row + dy, _BLACK)

    def png(self) -> bytes:
        def chunk(kind: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        pixels = b"".join(b"\0" + bytes(row) for row in self.rows)
        header = struct.pack(">IIBBBBB", _WIDTH, _HEIGHT, 8, 2, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def write_curve(path: str, values: Sequence[float]) -> None:
    """The values over their number, from 1; a grid line for each whole value, from 0."""
    picture = _Picture()
    top = int(max(values)) + 1
    right, bottom = _WIDTH - _EDGE, _HEIGHT - _BOTTOM

    def x_of(index: float) -> float:
        return _LEFT + (right - _LEFT) * index / max(1, len(values) - 1)

    def y_of(value: float) -> float:
        return bottom - (bottom - _EDGE) * value / top

    for value in range(top + 1):
        picture.line(_LEFT, y_of(value), right, y_of(value), _GREY if value else _BLACK)
        picture.number(_LEFT - 20, int(y_of(value)) - 5, value)
    for index in sorted({0, len(values) // 2, len(values) - 1}):
        picture.number(min(int(x_of(index)), right - 8 * len(str(index + 1))), bottom + 8, index + 1)
    for index in range(len(values) - 1):
        picture.line(x_of(index), y_of(values[index]), x_of(index + 1), y_of(values[index + 1]), _BLUE)
    with open(path, "wb") as file:
        file.write(picture.png())

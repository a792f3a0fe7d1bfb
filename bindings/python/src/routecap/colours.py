"""The colours of all pictures: made in OKLCH, where equal steps look equal."""

from functools import cache
from math import cos, log, pi, sin

Colour = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""


def oklch(lightness: float, chroma: float, hue: float) -> Colour:
    """A colour of sRGB: lightness 0 to 1, chroma 0 to about 0.3, hue in degrees.

    Chroma is lowered until the screen has the colour.
    """
    a, b = chroma * cos(hue * pi / 180), chroma * sin(hue * pi / 180)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    if chroma > 0.002 and not all(-0.0005 <= each <= 1.0005 for each in linear):
        return oklch(lightness, chroma - 0.002, hue)
    red, green, blue = (
        round(255 * (12.92 * each if each <= 0.0031308 else 1.055 * each ** (1 / 2.4) - 0.055))
        for each in (min(max(x, 0.0), 1.0) for x in linear)
    )
    return red, green, blue


def hexadecimal(colour: Colour) -> str:
    return "#%02x%02x%02x" % colour


@cache
def ramp(dark: bool, steps: int = 64) -> list[Colour]:
    """From nothing, near the background, to the most: lightness changes evenly, so that it can be
    read without colours too.
    """
    ends = (
        ((0.24, 0.03, 285), (0.93, 0.13, 95)) if dark else ((0.975, 0.012, 105), (0.33, 0.13, 285))
    )
    return [_ramp(ends, index / (steps - 1), dark) for index in range(steps)]


def _ramp(
    ends: tuple[tuple[float, float, float], tuple[float, float, float]], at: float, dark: bool
) -> Colour:
    (lightness, chroma, hue), (to_lightness, to_chroma, to_hue) = ends
    turn = (to_hue + 360 - hue) * at if dark else (to_hue - hue) * at
    return oklch(
        lightness + (to_lightness - lightness) * at,
        chroma + (to_chroma - chroma) * at + 0.09 * sin(pi * at),
        hue + turn,
    )


def exponent(most: float) -> float:
    """What a load in means, as a share of the highest, is raised to before it is a place of the
    ramp: the mean comes to 0.4 at least.
    """
    return min(1.0, log(0.4) / log(1 / most)) if most > 1 else 1.0


def expert(number: int, dark: bool) -> Colour:
    """The background of text that an expert has seen.

    Neighbours differ most: hues are a golden angle apart, and there are three lightnesses.
    """
    return _hue(0.44 if dark else 0.84, 0.11, number)


def mark(number: int, dark: bool) -> Colour:
    """The same hue where it has to stand out from the background: a line, a point."""
    return _hue(0.72 if dark else 0.64, 0.14, number)


def _hue(lightness: float, chroma: float, number: int) -> Colour:
    return oklch(lightness + 0.05 * (number % 3 - 1), chroma, 25 + number * 137.508)

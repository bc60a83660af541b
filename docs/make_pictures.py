"""Draws the pictures of the documentation, as SVG in docs/img.

python docs/make_pictures.py
"""

from drawing import IMAGES
from pictures_of_engine import canvas, forward, one_round, states
from pictures_of_plugins import caches, loop, schedules, stream, verifier, which_sampler

PICTURES = {
    "canvas": canvas,
    "forward": forward,
    "states": states,
    "round": one_round,
    "stream": stream,
    "loop": loop,
    "caches": caches,
    "schedules": schedules,
    "verifier": verifier,
    "which_sampler": which_sampler,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")

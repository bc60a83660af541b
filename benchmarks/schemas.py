"""Compiles the schemas of MaskBench, and checks which of their instances are accepted.

Usage, with a clone of https://github.com/guidance-ai/jsonschemabench:

    python -m benchmarks.schemas jsonschemabench/maskbench/data --number 2000

A schema is complete if all its valid instances are accepted, with the members of objects in their
own order or in the schema's.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from dllm_decode.text.constraints import JsonSchema
from dllm_decode.text.constraints.machines.limits import processor_limit
from dllm_decode.text.constraints.machines.octets import Octets


def is_accepted(octets: Octets, text: str) -> bool:
    """Returns whether a text is in the set of an automaton."""
    state = 0
    for byte in text.encode("utf-8", "surrogatepass"):
        state = int(octets.table[state, byte])
        if state < 0:
            return False
    return bool(octets.accepting[state])


def texts_of(value: Any, schema: Any) -> list[str]:
    """Returns a value as JSON texts, in its own order and in that of a schema's properties."""
    order: dict[str, int] = {}
    queue = [schema]
    for part in queue:
        if isinstance(part, dict):
            listed = part.get("properties")
            for name in listed if isinstance(listed, dict) else ():
                order.setdefault(name, len(order))
        queue.extend(
            part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        )

    def ordered(inner: Any) -> Any:
        if isinstance(inner, dict):
            names = sorted(inner, key=lambda name: order.get(name, len(order)))
            return {name: ordered(inner[name]) for name in names}
        return [ordered(item) for item in inner] if isinstance(inner, list) else inner

    return [
        json.dumps(form, ensure_ascii=False, separators=separators)
        for form in (value, ordered(value))
        for separators in ((",", ":"), (", ", ": "))
    ]


def main() -> None:
    """Prints how many schemas are accepted, how many are complete, and the processor time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--number", type=int, default=2000, help="schemas to draw")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--extra-keys", action="store_true", help="open what the standard opens")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.json"))
    random.Random(options.seed).shuffle(files)
    seconds, states, complete, invalid = [], [], [], []
    for file in files[: options.number]:
        case = json.loads(file.read_text(encoding="utf-8"))
        began_s = time.process_time()
        try:
            with processor_limit(10.0):
                octets = JsonSchema(case["schema"], extra_keys=options.extra_keys).octets()
        except ValueError as error:
            print(f"{file.name}: {error}")
            continue
        seconds.append(time.process_time() - began_s)
        states.append(len(octets))
        results = {True: [], False: []}
        for test in case["tests"]:
            texts = texts_of(test["data"], case["schema"])
            results[test["valid"]].append(any(is_accepted(octets, text) for text in texts))
        complete += [all(results[True])] if results[True] else []
        invalid += results[False]
    drawn = min(options.number, len(files))
    print(f"accepted {len(states)} of {drawn} schemas, {len(states) / drawn:.1%}")
    print(f"complete {sum(complete)} of {len(complete)} schemas, {np.mean(complete):.1%}")
    print(f"accepted {sum(invalid)} of {len(invalid)} invalid instances")
    for name, values in (("processor seconds", seconds), ("states", states)):
        p50, p90, p99 = np.percentile(values, (50, 90, 99))
        print(f"{name}: median {p50:.3g}, p90 {p90:.3g}, p99 {p99:.3g}")


if __name__ == "__main__":
    main()

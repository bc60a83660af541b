"""Compiles the schemas of MaskBench, and checks which of their instances are accepted.

Usage, with a clone of https://github.com/guidance-ai/jsonschemabench:

    python -m benchmarks.schemas jsonschemabench/maskbench/data --number 2000

A schema is complete if all its valid instances are accepted, with the members of objects in some
order.
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
    state = _read(octets, 0, text)
    return state >= 0 and bool(octets.accepting[state])


def is_accepted_in_some_order(octets: Octets, value: Any) -> bool:
    """Returns whether a value is accepted if the members of objects may change places."""
    state = _Walk(octets).after(0, value)
    return state >= 0 and bool(octets.accepting[state])


def _read(octets: Octets, state: int, text: str) -> int:
    """Returns the state to which a text leads from a state; -1 if to none."""
    for byte in text.encode("utf-8", "surrogatepass"):
        if state < 0:
            break
        state = int(octets.table[state, byte])
    return state


class _Walk:
    """Reads JSON values without spaces."""

    def __init__(self, octets: Octets) -> None:
        self._octets = octets
        self._after: dict[tuple[int, int], int] = {}

    def after(self, state: int, value: Any) -> int:
        """Returns the state to which a value leads from a state; -1 if to none."""
        if not isinstance(value, dict | list):
            return _read(self._octets, state, _compact(value))
        key = (state, id(value))
        if key not in self._after:
            read = self._after_object if isinstance(value, dict) else self._after_array
            self._after[key] = read(state, value)
        return self._after[key]

    def _after_array(self, state: int, items: list[Any]) -> int:
        state = _read(self._octets, state, "[")
        for number, item in enumerate(items):
            state = self.after(_read(self._octets, state, "," if number else ""), item)
        return _read(self._octets, state, "]")

    def _after_object(self, state: int, members: dict[str, Any]) -> int:
        """Takes the member after which all others that could be next still can."""
        state, comma, left = _read(self._octets, state, "{"), "", dict(members)
        while left and state >= 0:
            starts = self._starts(state, comma, left)
            comma, next_state = ",", -1
            for name, start in starts.items():
                next_state = self.after(start, left[name])
                others = starts.keys() - {name}
                if next_state >= 0 and others <= self._starts(next_state, ",", left).keys():
                    del left[name]
                    break
            else:
                return -1
            state = next_state
        return _read(self._octets, state, "}")

    def _starts(self, state: int, comma: str, members: dict[str, Any]) -> dict[str, int]:
        """Returns the state in which the value of each member begins that may be next."""
        starts = {name: _read(self._octets, state, f"{comma}{_compact(name)}:") for name in members}
        return {name: start for name, start in starts.items() if start >= 0}


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


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
            value = test["data"]
            accepted = is_accepted(octets, _compact(value))
            accepted = accepted or is_accepted_in_some_order(octets, value)
            results[test["valid"]].append(accepted)
            if accepted and not test["valid"]:
                print(f"{file.name}: accepted the invalid {_compact(value)}")
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

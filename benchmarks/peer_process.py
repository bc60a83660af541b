"""Times one contender in a process and an interpreter of its own; `benchmarks.peers` starts it.

`python peer_process.py JOB RESULT` reads a JSON file and writes another one. Only torch is imported
before the contender's checkout is the first folder of the path: another interpreter need not have
this package, and modules of the two have no chance to be mixed up. Official functions are called
as their authors call them, one row at a time, greedily, and without an early stop.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

Decode = Callable[[int], tuple[list[list[int]], int]]
"""Maps the steps of a block to the answers and the number of forwards."""

Job = dict[str, Any]
"""The fields of a setting, its prompts and its mask_id; model, contender, mode and checkout."""


def dllm_decode(job: Job) -> Decode:
    """Returns `decode` with the cache and verifier that `mode` names."""
    from benchmarks.setting import Setting, decode_setting, parse_pair
    from dllm_decode.models import load_model

    model, _ = load_model(job["model"], device=job["device"], tokenizer="optional")
    cache, verifier = parse_pair(job["mode"])

    def run(steps_per_block: int) -> tuple[list[list[int]], int]:
        setting = Setting(**{**job["setting"], "steps_per_block": steps_per_block})
        out = decode_setting(model, setting, cache=cache, verifier=verifier)
        return out.tokens.tolist(), out.forwards

    return run


def fast_dllm(job: Job) -> Decode:
    """Returns the function of Fast-dLLM's `generate.py` that `mode` names, row by row."""
    import generate
    from model.modeling_llada import LLaDAModelLM

    decode = vars(generate)[job["mode"]]
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(job["dtype"], torch.float32)
    model = LLaDAModelLM.from_pretrained(job["model"], torch_dtype=dtype)
    model = model.to(job["device"]).eval()
    forwards: list[None] = []
    model.register_forward_hook(lambda *_: forwards.append(None))

    def run(steps_per_block: int) -> tuple[list[list[int]], int]:
        forwards.clear()
        steps = steps_per_block * job["gen_length"] // job["block_length"]
        answers = []
        for prompt in job["prompts"]:
            tokens = decode(
                model, torch.tensor([prompt], device=job["device"]), steps=steps,
                gen_length=job["gen_length"], block_length=job["block_length"], temperature=0.0,
                mask_id=job["mask_id"],
            )[0]  # fmt: skip
            answers.append(tokens[0, len(prompt) :].tolist())
        return answers, len(forwards)

    return run


CONTENDERS = {"dllm-decode": dllm_decode, "fast-dllm": fast_dllm}
"""By the name of each contender the function that imports its code and loads the model."""


def main(job_file: str, result_file: str) -> None:
    """Loads, warms up, and measures one decode."""
    job = json.loads(Path(job_file).read_text())
    sys.path[0] = job["checkout"]
    torch.set_num_threads(job["num_threads"])
    run, is_cuda = CONTENDERS[job["contender"]](job), torch.device(job["device"]).type == "cuda"
    for _ in range(3 if is_cuda else 1):
        # On a GPU the whole decode, because its shapes select kernels.
        run(job["steps_per_block"] if is_cuda else min(2, job["steps_per_block"]))
    started, started_cpu = time.perf_counter(), time.process_time()
    tokens, forwards = run(job["steps_per_block"])
    result = {
        "wall_s": time.perf_counter() - started, "cpu_s": time.process_time() - started_cpu,
        "tokens": tokens, "forwards": forwards,
        "peak_mb": peak_mb(torch.device(job["device"])),
        "versions": f"torch {torch.__version__}, transformers {version('transformers')}",
    }  # fmt: skip
    Path(result_file).write_text(json.dumps(result))


def peak_mb(device: torch.device) -> float | None:
    """Returns the most memory that the process has held, libraries included; on CUDA torch's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    peaks = [int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM")]
    return peaks[0] if peaks else None


if __name__ == "__main__":
    main(*sys.argv[1:])

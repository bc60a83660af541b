"""Tasks for the evaluation harness, written to a folder: word problems of the embedded models."""

import json
from pathlib import Path

from eval.runs.names import parse_task

_HEAD = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
  cache_dir: {cache}
test_split: test
doc_to_text: "{{{{question}}}} answer :"
target_delimiter: " "
num_fewshot: 0
"""

_GENERATE = """\
output_type: generate_until
doc_to_target: "{{number}}"
generation_kwargs:
  until: ["Question:"]
  do_sample: false
  max_gen_toks: 40
filter_list:
  - name: strict
    filter:
      - {function: regex, regex_pattern: "#### (\\\\d+)"}
      - {function: take_first}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""

_CHOOSE = """\
output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{right}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""

_SCORE = """\
output_type: loglikelihood
doc_to_target: " {{answer}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""

_ROLL = """\
output_type: loglikelihood_rolling
doc_to_target: "{{answer}}"
metric_list:
  - {metric: word_perplexity}
"""

NAMES = ("words_generate", "words_choose", "words_score", "words_roll")


def write_tasks(folder: Path, num_docs: int = 7) -> Path:
    """Writes one task of each output type on the same documents, and returns the folder."""
    examples = parse_task(f"word_problems?split=test&limit={num_docs}").examples()
    lines = []
    for index, example in enumerate(examples):
        solution, number = str(example.target).rsplit(" ", 1)
        wrong = f"{solution} {int(number) % 90 + 1}"
        choices = [example.target, wrong] if index % 2 else [wrong, example.target]
        lines.append(
            {"question": example.prompt, "answer": example.target, "number": number,
             "choices": choices, "right": 1 - index % 2}
        )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "problems.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, rest in zip(NAMES, (_GENERATE, _CHOOSE, _SCORE, _ROLL), strict=True):
        head = _HEAD.format(name=name, file=file, cache=folder / "cache")
        (folder / f"{name}.yaml").write_text(head + rest)
    return folder

"""Commands of a user's own in a study: words, axes, variables, hosts, and what is refused before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaling_study import variables
from scaling_study.errors import StudyError
from scaling_study.frameworks import COMMAND, FRAMEWORKS
from scaling_study.hosts.hosts import Host
from scaling_study.launch import launchers
from scaling_study.launch.launchers import ENV_LIST, Command
from scaling_study.study import command, plan, study
from scaling_study.study.plan import Plan
from scaling_study.study.support import ALONE, Cluster
from scaling_study.trial import Trial
from tests.planted_sweeps import MACHINE

TORCHRUN = "torchrun --nproc-per-node {workers} 'my train.py' --batch={batch_per_worker} {amp}"
TWO = Cluster((Host("h1", 2), Host("h2", 4)), exports=("DATA_ROOT",), defined=frozenset())


def plan_of(tmp_path: Path, cluster: Cluster = ALONE, top: dict[str, Any] | None = None, **keys: Any) -> Plan:
    sweep = {"framework": "command", "command": TORCHRUN, "batch_per_worker": 16, **keys}
    given = {"study": "mine", "sweeps": [{k: v for k, v in sweep.items() if v is not None}], **(top or {})}
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(given))
    return plan.make(study.load(file), MACHINE, cluster=cluster)


def planned(tmp_path: Path, **keys: Any) -> list[Trial]:
    return [each.trial for each in plan_of(tmp_path, **keys).configurations]


def problem(tmp_path: Path, **keys: Any) -> str:
    with pytest.raises(StudyError) as refused:
        planned(tmp_path, **keys)
    assert "study.yaml:" in refused.value.problems[0]
    return str(refused.value.problems)


def words(trial: Trial) -> list[str]:
    return command.words(trial, "{port}", "/run")


def test_keys_and_free_axes_fill_the_words_of_a_command(tmp_path: Path) -> None:
    trials = planned(tmp_path, matrix={"workers": [1, 2], "amp": ["", "--amp 'O 1'"]})
    assert [(trial.workers, trial.arguments) for trial in trials] == [
        *((1, "amp="), (1, "'amp=--amp '\"'\"'O 1'\"'\"''")),
        *((2, "amp="), (2, "'amp=--amp '\"'\"'O 1'\"'\"''")),
    ]
    assert words(trials[0]) == ["torchrun", "--nproc-per-node", "1", "my train.py", "--batch=16"]
    assert words(trials[3])[-2:] == ["--amp", "O 1"]
    assert len({trial.configuration for trial in trials}) == 4
    assert {trial.model for trial in trials} == {"script:my-train.py"}
    assert {trial.cores_per_worker for trial in trials} == {None}


@pytest.mark.parametrize(("value", "read"), [("on", "true"), ("no", "false"), ("~", "null"), ("[1]", "[1]")])
def test_a_word_that_yaml_reads_as_no_text_is_refused_with_its_line(tmp_path: Path, value: str, read: str) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "study: mine\nsweeps:\n- framework: command\n  command: python t.py {amp}\n  batch_per_worker: 1\n"
        f"  matrix:\n    amp:\n    - --amp\n    - {value}\n"
    )
    with pytest.raises(StudyError) as refused:
        study.load(file)
    (problem,) = refused.value.problems
    assert f"study.yaml:9: amp: YAML reads {read};" in problem


def test_a_command_may_have_its_models_in_the_matrix(tmp_path: Path) -> None:
    trials = planned(tmp_path, command="python t.py -a {model}", matrix={"model": ["resnet18", "resnet50"]})
    assert [words(trial)[-1] for trial in trials] == [trial.model for trial in trials] == ["resnet18", "resnet50"]


GIVEN: dict[str, Any] = {
    **{"workers": 4, "batch_per_worker": 16, "oversubscribe": True, "model": "script:m", "device": "cpu", "seed": 7},
    **{"learning_rate": 0.01, "sequence_length": 128, "precision": "bf16", "compile": True, "accumulation": 2},
    **{"allreduce": "fp16", "workdir": "/w", "hosts": 2},
}


def test_every_key_of_a_command_is_a_placeholder(tmp_path: Path) -> None:
    names = [name for name in FRAMEWORKS[COMMAND].axes if name not in command.NO_PLACEHOLDERS]
    assert sorted(GIVEN) == sorted(names), "a new key is tried here too"
    text = "python " + " ".join(f"{name}={{{name}}}" for name in (*names, "global_batch"))
    (trial,) = planned(tmp_path, command=text, **GIVEN)
    expected = {**GIVEN, "hosts": "h1:2,h2:2", "global_batch": 64}
    made = launchers.command(trial, cluster=TWO)
    assert made.argv[:4] == ("env", "-C", "/w", "python")
    assert dict(word.split("=") for word in made.argv[4:]) == {name: str(value) for name, value in expected.items()}


def test_a_line_that_ends_in_a_backslash_goes_on_as_in_a_shell(tmp_path: Path) -> None:
    (trial,) = planned(tmp_path, command="python t.py \\\n    --seed={seed}")
    assert words(trial) == ["python", "t.py", "--seed=42"]


def test_a_value_is_never_a_second_command() -> None:
    trial = Trial(
        framework="command", command="python train.py --name {name}x {port} {run_dir}/a", arguments="'name=a; rm b'"
    )
    assert words(trial) == ["python", "train.py", "--name", "a; rm bx", "{port}", "/run/a"]


def test_braces_of_other_languages_stay() -> None:
    text = """python t.py 'name=${seed}_${now:%H}' '{"a": 1}' {seed}"""
    assert words(Trial(framework="command", command=text))[2:] == ["name=${seed}_${now:%H}", '{"a": 1}', "42"]


@pytest.mark.parametrize(
    "keys, fact",
    [
        ({"command": None}, "needs a command"),
        ({"command": "python 'train.py"}, "No closing quotation"),
        ({"command": "python train.py | tee log"}, "command has |, which only a shell reads"),
        ({"command": "accelerate launch --cpu --num_processes 2 train.py"}, "starts one process, whatever --num_proc"),
        (
            {"command": "python -m accelerate.commands.launch --num_processes={workers} --cpu t.py", "workers": 2},
            "starts as many, without GPUs too",
        ),
        ({"command": "python train.py > log"}, "quote it, or write sh -c '...' around it all"),
        ({"command": "RATE=0.1 python train.py"}, "command has RATE=0.1, which only a shell reads"),
        ({"command": "python {train}"}, "{train}"),
        ({"command": "python {launcher}"}, "{launcher}"),
        ({"command": "python t.py {learning_rate}"}, "give learning_rate"),
        ({"env": {"RATE": "{learning_rate}"}}, "env has {learning_rate}: give learning_rate"),
        ({"batch_per_worker": None}, "batch_per_worker or global_batch"),
        ({"zero_stage": 3}, "no 'zero_stage'"),
        ({"workers": 2, "hosts": 2}, "the command names no hosts"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(tmp_path: Path, keys: dict[str, Any], fact: str) -> None:
    assert fact in problem(tmp_path, **{"command": "python t.py", **keys})


@pytest.mark.parametrize("text", [
    "accelerate launch --multi_gpu --num_processes 2 --main_process_port 0 train.py --cpu",  # the script's own
    "accelerate launch --cpu train.py", "accelerate launch --cpu --num_processes 2 --mpirun_hostfile hosts train.py",
    "python train.py --cpu --num_processes 2",
])  # fmt: skip
def test_what_starts_as_many_as_it_says_is_not_refused(text: str) -> None:
    assert command.starts_one(text.split(), 1) == ""


def test_an_axis_that_no_placeholder_names_is_no_free_axis(tmp_path: Path) -> None:
    said = problem(tmp_path, matrix={"wrokers": [1]})
    assert "wrokers" in said and "workers" in said


# --- variables


def test_variables_are_part_of_what_is_measured_and_of_no_other_id(tmp_path: Path) -> None:
    keys = {"command": "python t.py {level}", "matrix": {"level": ["1"], "env": [{}, {"B": 2, "A": "{level} {seed}"}]}}
    without, with_some = planned(tmp_path, **keys)
    (before,) = planned(tmp_path, **{**keys, "matrix": {"level": ["1"]}})
    assert without.id == before.id and without.env is None
    assert with_some.env == "'A={level} {seed}' B=2" and with_some.id != before.id
    assert command.variables(with_some) == {"A": "1 42", "B": "2"}
    (another_order,) = planned(tmp_path, **{**keys, "matrix": {"level": ["1"]}, "env": {"A": "{level} {seed}", "B": 2}})
    assert another_order.id == with_some.id


def test_an_axis_may_be_one_of_variables_alone(tmp_path: Path) -> None:
    trials = planned(tmp_path, command="python t.py", env={"NCCL_ALGO": "{algo}"}, matrix={"algo": ["Ring", "Tree"]})
    assert [command.variables(trial) for trial in trials] == [{"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}]


def test_variables_of_the_study_are_those_of_all_its_commands(tmp_path: Path) -> None:
    top = {"env": {"A": 1, "B": 1}, "baseline": {"framework": "command", "env": {}}}
    made = plan_of(tmp_path, top=top, command="python t.py", matrix={"env": [{}, {"B": 2}]})
    assert [planned.trial.env for planned in made.configurations] == ["A=1 B=1", "A=1 B=2"]
    assert [trial.env for trial in made.baseline] == ["A=1 B=1"]
    (sweep_alone,) = planned(tmp_path, top={"env": {"A": 1}}, command="python t.py")
    assert sweep_alone.env == "A=1"
    ours = {"framework": "single", "model": "resnet8"}
    assert "for sweeps of framework command" in problem(tmp_path, top={"env": {"A": 1}, "sweeps": [ours]})


def test_a_baseline_without_variables_is_found(tmp_path: Path) -> None:
    top = {"baseline": {"framework": "command", "env": {}}}
    made = plan_of(tmp_path, top=top, command="python t.py", matrix={"env": [{}, {"B": 2}]})
    assert [trial.env for trial in made.baseline] == [None]


@pytest.mark.parametrize(
    "env, fact",
    [
        ({"HF_TOKEN": "hf_s3cret"}, "write HF_TOKEN: ${HF_TOKEN}"),
        ({"MY_API_KEY": "x${HF_TOKEN} hf_s3cret"}, "write MY_API_KEY: ${MY_API_KEY}"),
        ({"1A": "hf_s3cret"}, "'1A' is not a variable name"),
        ({"A": True}, "A: expected text or a number"),
        ({"A": ["hf_s3cret"]}, "A: expected text or a number"),
        ({"A": "hf_s3cret\n"}, "A: must not contain line breaks"),
        ({"TMPDIR": "/hf_s3cret"}, "TMPDIR is set for each start"),
        ({"SCALING_STUDY_OBSERVE": "hf_s3cret"}, "SCALING_STUDY_OBSERVE is set for each start"),
        (["A=1"], "expected variables and their values"),
    ],
)
def test_variables_that_are_refused_and_no_value_of_theirs_is_said(tmp_path: Path, env: Any, fact: str) -> None:
    said = problem(tmp_path, command="python t.py", env=env)
    assert fact in said and "s3cret" not in said
    if isinstance(env, dict):
        matrix = {"env": [env]}
        assert fact in problem(tmp_path, command="python t.py", matrix=matrix)
        assert fact in problem(tmp_path, command="python t.py", top={"env": env})


@pytest.mark.parametrize(
    "text, found",
    [
        ("env A=1 HF_TOKEN=hf_s3cret python t.py", "HF_TOKEN="),
        ("python t.py --verbose --wandb_api_key=s3cret", "--wandb_api_key"),
        ("python t.py logger.api_key=s3cret", "logger.api_key"),
        ("sh -c 'python t.py --api-key s3cret | tee log'", "--api-key"),
        ('python t.py --password "s3cret word"', "--password"),
        ("python t.py --hub_token hf_s3cret --token", "--hub_token"),
        ("python t.py -token {t}", "-token"),
        ("mpirun -x MY_API_KEY=s3cret python t.py", "MY_API_KEY="),
        ("python t.py --uri http://me:s3cret@host/1", "an address with a password"),
        ("sh -c 'python t.py --api-key \"$API_KEY\"'", ""),
        ("env HF_TOKEN= TOKENIZERS_PARALLELISM=false python t.py --token", ""),
        ("python t.py --max-tokens 512 --tokenizer gpt2 --pad_token x --key-dim 64 --use-auth-token True", ""),
        ("python t.py --uri http://host:80/1 --api-key --verbose tokenizer.unk_token=x", ""),
    ],
)
def test_a_possible_secret_of_a_command_line_is_refused_unsaid(tmp_path: Path, text: str, found: str) -> None:
    keys: dict[str, Any] = {"command": text, **({"matrix": {"t": ["s3cret"]}} if "{t}" in text else {})}
    if found:
        said = problem(tmp_path, **keys)
        assert f"command has {found}, whose value may be a secret" in said and "s3cret" not in said
    else:
        assert planned(tmp_path, **keys)


def test_a_secret_is_passed_by_name_and_recorded_nowhere(tmp_path: Path) -> None:
    env = {"HF_TOKEN": "${HF_TOKEN}", "AUTH": "Bearer ${HF_TOKEN}", "PATH": '/a "b"$:${PATH}'}
    env |= {"OUT": "{run_dir}/{port}"}
    (trial,) = planned(tmp_path, command="python t.py", env=env)
    here = {"HF_TOKEN": "hf_{run_dir}_s3cret", "PATH": "/bin"}
    made = launchers.command(trial, port=20_001)
    assert command.started(trial, made.env, here, "/run") == {
        "HF_TOKEN": "hf_{run_dir}_s3cret",
        "AUTH": "Bearer hf_{run_dir}_s3cret",
        "PATH": '/a "b"$:/bin',
        "OUT": "/run/20001",
    }
    recorded = variables.recorded(here, ALONE.environment(trial))
    assert recorded == {**env, "HF_TOKEN": variables.NOT_RECORDED}
    secrets = 'AUTH="Bearer ${HF_TOKEN}" HF_TOKEN="${HF_TOKEN}"'
    assert made.shell() == secrets + r""" OUT='{run_dir}/20001' PATH="/a \"b\"\$:${PATH}" python t.py"""


def test_a_variable_that_is_not_set_here_is_no_error_of_the_study(tmp_path: Path) -> None:
    keys = {"command": "python t.py", "env": {"HF_TOKEN": "${HF_TOKEN}"}}
    for defined, why in (({"HF_TOKEN"}, ""), (set(), "env takes HF_TOKEN from the environment, where it is not set")):
        (one,) = plan_of(tmp_path, cluster=Cluster(defined=frozenset(defined)), **keys).configurations
        assert one.unsupported == why


# --- hosts

NODES = "--nnodes {nodes} --node-rank {node} --rdzv-endpoint {first_host}:{port} --nproc-per-node {workers_per_host}"
EACH = [sys.executable, "-m", "scaling_study.hosts.on_each_host"]
SEEN = ["PYTHONPATH", "SCALING_STUDY_OBSERVE", "SCALING_STUDY_OBSERVE_DRIVER", "SCALING_STUDY_OBSERVE_STEPS"]
NAMES = ["DATA_ROOT", "LEVEL", "PATH", *SEEN]
LEVEL = {"LEVEL": "1"}


@pytest.mark.parametrize(
    ("text", "over", "alone"),
    [
        (
            f"torchrun {NODES} t.py",
            Command(
                (*EACH, "-x", "LEVEL", "-x", "PATH", "h1:2,h2:2", "env", "-C", "/w", "torchrun", "--nnodes", "2",
                 "--node-rank", "{node}", "--rdzv-endpoint", "h1:20001", "--nproc-per-node", "2", "t.py"), LEVEL,
            ),
            "torchrun --nnodes 1 --node-rank 0 --rdzv-endpoint 127.0.0.1:20001 --nproc-per-node 4 t.py",
        ),
        (
            "/opt/bin/mpirun -np {workers} -H {hosts} python t.py",
            Command(
                ("env", "-C", "/w", "/opt/bin/mpirun", "-np", "4", "-H", "h1:2,h2:2", "python", "t.py"),
                {**LEVEL, ENV_LIST: ";".join(NAMES)},
            ),
            "/opt/bin/mpirun -np 4 -H localhost:4 python t.py",
        ),
        (
            "mpirun -np {workers} -H {hosts} -x LD_LIBRARY_PATH python t.py",
            Command(
                ("env", "-C", "/w", "mpirun", *(word for name in NAMES for word in ("-x", name)), "-np", "4", "-H",
                 "h1:2,h2:2", "-x", "LD_LIBRARY_PATH", "python", "t.py"), LEVEL,
            ),
            "mpirun -np 4 -H localhost:4 -x LD_LIBRARY_PATH python t.py",
        ),
        (
            "horovodrun -np {workers} -H {hosts} python t.py",
            Command(("env", "-C", "/w", "horovodrun", "-np", "4", "-H", "h1:2,h2:2", "python", "t.py"), LEVEL),
            "horovodrun -np 4 -H localhost:4 python t.py",
        ),
        (
            "deepspeed --hostfile {hostfile} --no_ssh --node_rank {node} t.py",
            Command(
                (*EACH, "-x", "LEVEL", "-x", "PATH", "h1:2,h2:2", "env", "-C", "/w", "deepspeed", "--hostfile",
                 "{hostfile}", "--no_ssh", "--node_rank", "{node}", "t.py"), LEVEL,
            ),
            "deepspeed --hostfile /dev/null --no_ssh --node_rank 0 t.py",
        ),
    ],
)  # fmt: skip
def test_one_command_for_this_machine_and_for_several_hosts(tmp_path, text, over, alone):
    keys = {"command": text, "workdir": "/w", "workers": 4, "env": LEVEL, "oversubscribe": True}
    two = plan_of(tmp_path, cluster=TWO, hosts=2, **keys)
    assert two.configurations[0].unsupported == ""
    assert launchers.command(two.configurations[0].trial, port=20_001, cluster=TWO) == over
    (one,) = planned(tmp_path, **keys)
    assert launchers.command(one, port=20_001, cluster=TWO).argv == ("env", "-C", "/w", *alone.split())


@pytest.mark.parametrize(
    "keys, why",
    [
        ({"command": "accelerate launch --ip {first_host} t.py"}, "accelerate may not take the observer"),
        ({"command": "accelerate launch --machine_rank {node} t.py"}, ""),
        ({"command": "python t.py {hosts}", "env": {"NODE_RANK": "{node}"}}, ""),
        ({"command": "srun -N {nodes} python t.py"}, "srun needs a Slurm job: --slurm submits one"),
        ({"command": "horovodrun -H {hosts} t.py", "env": {"HF_TOKEN": "${A}"}}, "horovodrun would write HF_TOKEN on"),
        ({"command": "mpirun -H {hosts} t.py", "env": {"HF_TOKEN": "${A}"}}, ""),
    ],
)
def test_what_cannot_be_observed_over_hosts_is_unsupported(tmp_path: Path, keys: dict[str, Any], why: str) -> None:
    cluster = Cluster(TWO.hosts, defined=frozenset({"A"}))
    (one,) = plan_of(tmp_path, cluster=cluster, workers=4, hosts=2, oversubscribe=True, **keys).configurations
    assert one.unsupported.startswith(why) and bool(one.unsupported) == bool(why)


def test_srun_is_started_with_its_job_and_not_in_turns(tmp_path: Path) -> None:
    measure = {"measure": {"warm": True}}
    (one,) = plan_of(tmp_path, cluster=Cluster(in_job=True), top=measure, command="srun t.py").configurations
    assert one.unsupported == "" and one.trial.warm is None


def test_a_command_may_be_compared_with_a_model_of_ours_and_reads_its_own_data(tmp_path: Path) -> None:
    ours = {"framework": "single", "model": "resnet8", "data": "synthetic"}
    own = {"framework": "command", "command": "python t.py", "model": "resnet8", "batch_per_worker": 32}
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump({"study": "both", "parity": False, "sweeps": [ours, own]}))
    draft = plan.draft(study.load(file), MACHINE)
    assert draft.data_needed == set()
    assert [each.trial.data for each in draft.plan({}).configurations] == ["synthetic", "auto"]


# --- the samples that a command is expected to take ---

NO_ARITHMETIC = ("2 ** 9", "{workers}{workers}", "len('ab')", "True", "-3", "4 // 0", "(")
BY_AXES = {"command": "torchrun --nproc-per-node {workers} t.py --batch={batch}", "batch_per_worker": None}


def test_an_expected_global_batch_is_worked_out_from_axes_and_held_against_what_is_seen(tmp_path: Path) -> None:
    expect = {"global_batch": "({workers} + 1) * {batch} // 2 * 4 - 0"}
    matrix = {"workers": [1, 3], "batch": [6, 12]}
    trials = planned(tmp_path, **BY_AXES, expect=expect, matrix=matrix)
    assert [(t.workers, t.arguments, t.global_batch) for t in trials] == [
        *((1, "batch=6", 24), (1, "batch=12", 48)),
        *((3, "batch=6", 48), (3, "batch=12", 96)),
    ]
    assert {trial.configuration for trial in trials} == {
        trial.configuration
        for batch, seen in ((6, 24), (12, 48))
        for workers, times in ((1, 1), (3, 2))
        for trial in planned(
            tmp_path, **BY_AXES, global_batch=seen * times, matrix={"workers": [workers], "batch": [batch]}
        )
    }, "the ids are those of the same number written by hand"
    (both,) = planned(tmp_path, command="x", workers=2, expect={"global_batch": "{workers} * {batch_per_worker}"})
    assert both.global_batch == 32


@pytest.mark.parametrize(
    "keys, fact",
    [
        ({"expect": {"global_batch": "{workers} * {batch}"}}, "{batch}, which is neither a key"),
        ({"expect": {"global_batch": "{workers} * {size}"}}, "size is 'big'"),
        ({"expect": {"global_batch": "{workers} / 2"}}, "+ - * // and parentheses, like '{workers} * {batch}'"),
        *(({"expect": {"global_batch": text}}, "is no arithmetic") for text in NO_ARITHMETIC),
        ({"expect": {"global_batch": "{workers} - 1"}}, "gives 0"),
        ({"expect": {"global_batch": "99999 * 99999"}}, "gives 9999800001"),
        ({"expect": {"global_batch": "7"}, "batch_per_worker": 16}, "gives 7, and batch_per_worker x workers is 16"),
        ({"expect": {"global_batch": "{workers} * 7"}, "global_batch": 16}, "gives 7, and global_batch is 16"),
        ({"expect": {"global_batch": "7"}, "workers": 2}, "workers=2 does not divide global_batch=7"),
        ({"expect": {"batch": "7"}}, "unknown key 'batch'"),
        ({"expect": {"global_batch": "32"}, "framework": "single", "command": None}, "expect is for framework command"),
    ],
)
def test_what_is_no_arithmetic_of_samples_is_refused_with_its_line(tmp_path, keys, fact):
    sweep = {"command": "python t.py {size}", "batch_per_worker": None, "matrix": {"size": ["big"]}, **keys}
    if "framework" in keys:
        del sweep["matrix"]
    with pytest.raises(StudyError) as refused:
        planned(tmp_path, **sweep)
    assert any(fact in problem for problem in refused.value.problems), refused.value.problems
    assert all("study.yaml:" in problem for problem in refused.value.problems)

"""`Recipe`: everything that names a run, as frozen dataclasses, from the model to the warm start. Read this file first.

A module of this folder has a function `recipe()` that returns one. A recipe becomes another in four ways:

- by the name of another module: `recipe=qwen3_8b`, or any importable one, often a `dataclasses.replace` of one here;
- by another model of its family: `model=ORG/NAME`, or a folder;
- by another kind of tasks: `task=arc`, a function in `recipes/tasks.py`;
- by a field that the command line overrides, named by its dotted key: `rollout.max_turns=6`.

Invariants, which tests hold:

- A recipe is complete: nothing that it says is read from the environment.
- It is plain data: `recipe.yaml` in a run's folder holds every field, and reads back equal.
- A field's type says which values it may have by itself; fields of which anything is allowed are listed in a test.
- `checks.py` decides which fields go together, `rules.py` what SLiME refuses, and an engine adds what is its own. All
  that is wrong is said at once, with what is allowed instead, before anything starts.
- Names that a plug-in acts on, such as those of `rollout.schedule`, stand here as text, and are all that it has.
- Neither this file nor what it imports has an engine, a sandbox or a grader: six of our modules in all.

The sections come first, each with what its fields mean and in which unit; `Recipe`, at the end, joins them.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any

from msgspec import Meta

from slime_swe.recipes.families import Family, load_family, read_config
from slime_swe.recipes.forecast import Informative, informative_of
from slime_swe.recipes.gpus import GPUS
from slime_swe.recipes.layers import Shape

# Types of fields: msgspec's constraints, stated where the field is. `Meta(description=...)` says in words what is
# allowed, where the constraint itself would not be understood.
Size = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Weight = Annotated[float, Meta(ge=0)]
Rate = Annotated[float, Meta(ge=0, le=1)]
Part = Annotated[float, Meta(gt=0, le=1)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Folder = Annotated[str, Meta(min_length=1, description="a folder")]

_DOTTED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+"
Hook = Annotated[str, Meta(pattern=rf"^{_DOTTED}\Z", description="a dotted path such as my_module.my_function")]
OptionalHook = Annotated[
    str, Meta(pattern=rf"^({_DOTTED})?\Z", description="a dotted path such as my_module.my_filter, or empty")
]
Server = Annotated[str, Meta(pattern=r"^(https?://)?(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}/?\Z")]
CHOICES = "choices"  # in a constraint's `extra`


def one_of(*names: str) -> Meta:
    """Constrain a text to be one of these."""
    said = ", ".join(filter(None, names)) + (", or empty" if "" in names else "")
    pattern = rf"^({'|'.join(map(re.escape, names))})\Z"
    return Meta(pattern=pattern, description=f"one of {said}", extra={CHOICES: names})


def constant(value: int, why: str) -> Meta:
    """Constrain a number to stay what it is."""
    return Meta(ge=value, le=value, description=f"{value}: {why}")


MASKED = ("time_budget", "max_turns", "context_full")
TRUNCATED = (*MASKED, "max_response")  # limits of a recipe that end an episode
TRACKERS = ("wandb", "trackio", "tensorboard")
TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")  # Megatron's names of what may have an adapter
EMBEDDED, SGLANG = "embedded", "sglang"  # servers
# The hooks of a warm start's stage, in place of `data.source` and `rollout.generate`.
RECORDED_SOURCE = "slime_swe.rollout.warm_start.RecordedEpisodes"
RECORDED_GENERATE = "slime_swe.rollout.warm_start.generate"
_WHOLE = "a trained token's log-probability is that of the whole distribution"


@dataclass(frozen=True)
class Model:
    """The policy.

    checkpoint: a folder in Hugging Face format; `ORG/NAME`, a folder of that name in `folder`; or `embedded:seed`, this
        package's seed policy.
    config: its shape, by the keys and values of the checkpoint's `config.json`, as many of them as its family reads.
    family: a name in `slime_swe.recipes.families.FAMILIES` or the dotted path of a `Family`; empty for the one that
        reads the config's `model_type`.
    tool_format: how the policy writes its tool calls: `hermes`, `qwen25_coder`, `qwen3_coder`, `glm45`, `glm47`,
        `minimax_m2`, `llama3`, `bash_block` (native agent only), `sglang.NAME` for SGLang's parser of that name or the
        dotted path of a `ToolFormat`; empty for its family's.
    folder: folder of all models, on a file system that every node sees. `ORG/NAME_torch_dist` beside `ORG/NAME` holds
        the same weights, converted for Megatron.
    chat_template: a file, or the name of one in `rollout/chat/templates`; empty for the checkpoint's own.
    """

    checkpoint: Annotated[
        str, Meta(min_length=1, description="a folder in Hugging Face format, ORG/NAME or embedded:seed")
    ]
    config: dict[str, Any]
    family: str = ""
    tool_format: str = ""
    folder: Folder = "models"
    chat_template: str = ""

    @cached_property
    def kind(self) -> Family:
        """The model's family. Raises `UserError` where there is none."""
        return load_family(self.family, self.config.get("model_type"))

    @cached_property
    def shape(self) -> Shape:
        """The model's shape, as its family reads it. Raises `UserError` where it can't be trained."""
        return read_config(self.kind, self.config)[0]

    @property
    def tool_calls(self) -> str:
        """The format in which the policy writes tool calls: the recipe's, else its family's."""
        return self.tool_format or self.kind.tool_format


@dataclass(frozen=True)
class Cluster:
    """The machines. The embedded engine wants one, and no GPUs asked for.

    nodes: number of machines.
    gpus_per_node: GPUs of each machine.
    gpu: GPU model: `A100-40GB`, `A100-80GB`, `H100-80GB`, `H200-141GB`, `H800-80GB`, `H20-96GB`, `B200-180GB`,
        `L40S-48GB` or `MI300X-192GB` (docs/planner.md); empty without GPUs.
    colocate: train and serve on the same GPUs, in turns.
    rollout_gpus: GPUs that only serve, beside the nodes' own; 0 with `colocate`.
    cpus_per_node: CPU cores of each machine. The sandboxes run on those of one, with `ray:BACKEND` of all.
    memory_per_node: host memory of each machine, GiB.
    disk_per_node: disk of each machine, GiB.
    gpu_hour_price: price of one GPU for an hour, in any currency; 0 leaves cost out of the plan.
    ray_address: dashboard of an existing Ray cluster, `http://host:port`; empty starts one.
    interface: network interface by which gloo and NCCL connect the machines, e.g. `eth0`; empty for the one that has
        the node's address in gloo, where Ray is started here or by SLURM, and for what NCCL finds.
    threads: CPU threads of one tensor operation, in the embedded trainer and server. The trainer works on as many
        micro-batches at once as the cores allow, which changes no result.
    """

    nodes: Size = 1
    gpus_per_node: Count = 0
    gpu: Annotated[str, one_of("", *GPUS)] = ""
    colocate: bool = True
    rollout_gpus: Count = 0
    cpus_per_node: Size = 2
    memory_per_node: Size = 4
    disk_per_node: Size = 8
    gpu_hour_price: Weight = 0.0
    ray_address: Annotated[str, Meta(pattern=r"^(https?://\S+:\d+)?\Z", description="http://host:port, or empty")] = ""
    interface: Annotated[str, Meta(pattern=r"^[\w.:-]*\Z", description="a name such as eth0, or empty")] = ""
    threads: Size = 1

    @property
    def train_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def serve_gpus(self) -> int:
        """GPUs of our own SGLang engines; with `colocate` the trainer's."""
        return self.train_gpus if self.colocate else self.rollout_gpus


@dataclass(frozen=True)
class Parallel:
    """The sizes by which the trainer spreads one model. The embedded engine is one process and wants all five at 1.

    tp: tensor parallel size.
    pp: pipeline parallel size.
    cp: context parallel size.
    ep: expert parallel size.
    etp: expert tensor parallel size.
    max_tokens_per_gpu: tokens of one micro-batch on one GPU (packing budget); a context-parallel group of GPUs takes
        `cp` times as many.
    recompute: which activations are recomputed in the backward pass: `none`, `selective` (attention) or `full` (every
        layer).
    """

    tp: Size = 1
    pp: Size = 1
    cp: Size = 1
    ep: Size = 1
    etp: Size = 1
    max_tokens_per_gpu: Size = 8192
    recompute: Annotated[str, one_of("none", "selective", "full")] = "none"


@dataclass(frozen=True)
class Serving:
    """The server that samples from the policy.

    server: `embedded` or `sglang`; empty for the engine's own: SGLang on GPUs, the embedded server without.
    router_ip: host of a running SGLang router or server; empty starts one for this run.
    router_port: port of that router or server; 0 if one is started.
    external_engines: `host:port` of running SGLang servers, which SLiME uses in place of its own.
    concurrency: episodes at once, per server, at most. On GPUs a run begins with as many of mean length as the server's
        KV cache holds, if that is fewer, and adapts their number to what it keeps. 0: without such a cap.
    deterministic: give each request its own sampling seed, so that a run is a function of its recipe.
    gpus_per_engine: GPUs that share one copy of the model, by tensor parallelism.
    ep: expert parallel size of one engine.
    dp_attention: each GPU of an engine keeps the KV cache of its own requests, in place of a copy of shared heads.
    mem_fraction: share of a GPU's memory for weights and KV cache.
    """

    server: Annotated[str, one_of("", EMBEDDED, SGLANG)] = ""
    router_ip: str = ""
    router_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    external_engines: Annotated[list[Server], Meta(description="a list of host:port")] = field(default_factory=list)
    concurrency: Count = 128
    deterministic: bool = True
    gpus_per_engine: Count = 0
    ep: Size = 1
    dp_attention: bool = False
    mem_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.8


@dataclass(frozen=True)
class Rollout:
    """The sampling of episodes. `batch_size` x `samples_per_task` episodes make one rollout.

    batch_size: tasks of one rollout.
    samples_per_task: episodes of each task (GRPO's group).
    max_over_sampling: with `sync` and `async`, groups sampled at once for one that a batch lacks, at most. As many are
        sampled as it takes at the rate at which groups passed the filter so far. What is not needed then is sampled
        anew in the next rollout. 0: twice one over the share of groups that is expected to pass (`forecast.solved`).
    max_turns: model calls of one episode.
    tries: how often the native agent may submit: while tests fail, it is shown what they print and goes on.
    no_call_turns: replies without a tool call, one after the other, that end an episode of the native agent. Those
        before are answered with the form of a call; 1 ends it at once.
    max_response: tokens of one model call.
    max_context: tokens of one episode, its prompt included.
    time_budget: seconds of one episode, not counting its model calls; each of these may take half as long.
    wall_time_budget: the same with its model calls, so that no batch waits longer for one episode; 0 for no bound.
    schedule: `sync` (sample, then train), `carry` (the same, but episodes that a batch leaves unfinished go on in the
        next rollout), `async` (sample the next rollout while training on this one) or `continuous` (never stop
        sampling).
    max_staleness: with `carry` and `continuous`, how many optimizer steps older than the weights that it trains those
        may be under which an episode began.
    mask_truncated: stop reasons of episodes that are left out of the loss, though not of the baseline: `time_budget`,
        `max_turns`, `context_full`, `max_response`.
    max_attempts: attempts at an episode that infrastructure breaks, and then at its grading, before it is given up.
        While others of its group are played there are more, but not with 1.
    outage_limit: seconds in which infrastructure breaks every episode that begins, after which the run ends.
    temperature: sampling temperature.
    top_p: always 1: a trained token's log-probability is that of the whole distribution.
    top_k: always -1 (no limit), for the same reason.
    grammar: what every reply has to follow, its reasoning included, where the server samples by a grammar; empty for
        none. Its form is `grammar_kind`. Tokens that it decides are not trained (see docs/native_agent.md).
    grammar_kind: `regex`, or `ebnf` in the dialect of the server's grammar backend.
    grammar_tolerance: a token is trained where the grammar left all of the policy's probability but this share.
    agent: who acts: `native`, a real agent (`mini_swe_agent`, `qwen_code`, `aider`, `claude_code`, `codex`, `opencode`,
        `openhands`), or the dotted path of an `Agent` class.
    sandbox: where commands run (`local`, `overlay`, `docker`, `apptainer`, `remote:KIND`; `ray:BACKEND` on all nodes).
    sandbox_concurrency: sandboxes open at once, at most: fewer on a machine that does not bear so many. 0: two for each
        of `cluster.cpus_per_node`, of all nodes with `ray:BACKEND`.
    keep_disk_free: GiB of each disk that has images of tasks: where less is free, the run removes those that it has
        got and used longest ago, before it gets another. 0: none.
    system_prompt: first message of every episode.
    generate: dotted path of the plug-in that runs an episode.
    log: dotted path of the plug-in that logs a rollout's episodes.
    log_evaluation: dotted path of the plug-in that logs an evaluation's episodes.
    """

    batch_size: Size
    samples_per_task: Size
    max_turns: Size
    max_response: Size
    max_context: Size
    max_over_sampling: Weight = 0.0
    time_budget: Positive = 120.0
    wall_time_budget: Weight = 0.0
    schedule: Annotated[str, one_of("sync", "carry", "async", "continuous")] = "sync"
    max_staleness: Count = 2
    mask_truncated: Annotated[
        list[Annotated[str, one_of(*TRUNCATED)]], Meta(description=f"a list of {', '.join(TRUNCATED)}")
    ] = field(default_factory=lambda: [*MASKED])
    max_attempts: Size = 5
    outage_limit: Positive = 3600.0
    tries: Size = 1
    no_call_turns: Size = 3
    temperature: Positive = 1.0
    top_p: Annotated[float, constant(1, _WHOLE)] = 1.0
    top_k: Annotated[int, constant(-1, _WHOLE)] = -1
    grammar: str = ""
    grammar_kind: Annotated[str, one_of("regex", "ebnf")] = "regex"
    grammar_tolerance: Share = 0.05
    agent: Annotated[
        str, Meta(min_length=1, description="native, another agent's name, or the dotted path of an Agent class")
    ] = "native"
    sandbox: Annotated[str, Meta(min_length=1, description="local, or the dotted path of a sandbox backend")] = "local"
    sandbox_concurrency: Count = 0
    keep_disk_free: Count = 0
    system_prompt: str = ""
    generate: Hook = "slime_swe.rollout.slime_plugin.generate"
    log: Hook = "slime_swe.rollout.slime_plugin.log_rollout"
    log_evaluation: Hook = "slime_swe.rollout.slime_plugin.log_evaluation"


@dataclass(frozen=True)
class Reward:
    """The reward of an episode.

    mode: `plus_minus` (+1 solved, -1 not), `binary` (1, 0) or `fraction` (share of the tests that pass, but 0
        unless a FAIL_TO_PASS test does).
    function: dotted path of the reward plug-in.
    harness: who runs the eval scripts of SWE-bench's format: `sandboxed` (our sandboxes) or `official` (swebench itself
        on Docker).
    harness_python: an interpreter that has swebench; empty for the one that trains.
    negative_control: believe a log that would be rewarded only with a witness from a second run.
    overlong_tokens: the last tokens of `rollout.max_context` in which a penalty grows from 0 to `overlong_penalty`
        (DAPO's soft overlong punishment); 0 for none.
    overlong_turns: the same for the last turns of `rollout.max_turns`.
    overlong_penalty: what each of the two takes off the reward at its limit.
    weights: further components, e.g. `{tests: 0.3, repetition: 0.1}`. Added: `tests` (the share of tests that pass),
        `diff` (the likeness to the gold patch), `format` (the share of turns without a malformed call). Taken off:
        `repetition`, and where the task is not solved `syntax`, `type`, `name`, `attribute` and `import` for errors in
        the grading's log.
    last_mile: exponent of the share of tests that pass, in `fraction` and `tests`: above 1 the last tests count most.
    least_spread: where the reward is a degree (`task=diff`, `steps` or `vulnerability`), a group teaches whose best and
        worst lie further apart than this.
    """

    mode: Annotated[str, one_of("plus_minus", "binary", "fraction")] = "plus_minus"
    function: Hook = "slime_swe.rewards.slime_plugin.reward"
    harness: Annotated[str, one_of("sandboxed", "official")] = "sandboxed"
    harness_python: str = ""
    negative_control: bool = True
    overlong_tokens: Count = 0
    overlong_turns: Count = 0
    overlong_penalty: Weight = 1.0
    weights: dict[str, float] = field(default_factory=dict)
    last_mile: Positive = 1.0
    least_spread: Weight = 0.05


@dataclass(frozen=True)
class Data:
    """The tasks of a run.

    train: task sets to train on, e.g. `synthetic:train` or `path/to/tasks.jsonl`.
    weights: share of the groups that each set of `train` gets, in proportion; empty trains on all tasks alike.
    filters: options of a task set that hold for every set of `train`, e.g. `{patch_lines: 1-200, not_repo: a/b}`; what
        a set says itself after its `?` counts first.
    registry: where the images of all sets are pulled from in place of where their names say: the address of a mirror,
        or a whole name with `{name}` or `{id}`; empty changes none. What a set says itself after its `?` counts first.
    eval: name -> task set; `heldout` and `unseen` are the ones that the summary reports by name.
    allow_overlap: evaluation tasks that training may show, by id or by a pattern with `*`; any other is refused.
    eval_samples_per_task: episodes of each evaluation task.
    shuffle: reorder the training tasks in each epoch, from the run's seed.
    retire_above: a training task whose solve rate is higher is handed out no more; 1 retires none.
    boost_below: a training task whose solve rate is lower comes twice as often; 0 boosts none.
    rate_episodes: a task's solve rate is that of its latest so many episodes; with fewer it has none.
    source: dotted path of the data-source class.
    """

    train: Annotated[list[str], Meta(min_length=1, description="at least one task set, such as synthetic:train")]
    weights: Annotated[list[Positive], Meta(description="a list of numbers of more than 0")] = field(
        default_factory=list
    )
    filters: dict[str, str] = field(default_factory=dict)
    registry: str = ""
    eval: dict[str, str] = field(default_factory=dict)
    allow_overlap: list[str] = field(default_factory=list)
    eval_samples_per_task: Size = 1
    shuffle: bool = True
    retire_above: Rate = 1.0
    boost_below: Rate = 0.0
    rate_episodes: Size = 16
    source: Hook = "slime_swe.data_sources.slime_plugin.TaskDataSource"

    @property
    def training_sets(self) -> list[str]:
        """`train`, each set with the filters and the registry that hold for it."""
        return [_with_options(spec, {**self.filters, **self._of_all}) for spec in self.train]

    @property
    def evaluation_sets(self) -> dict[str, str]:
        """`eval`, each set with the registry that holds for it."""
        return {name: _with_options(spec, self._of_all) for name, spec in self.eval.items()}

    @property
    def _of_all(self) -> dict[str, str]:
        return {"registry": self.registry} if self.registry else {}


def _with_options(spec: str, options: dict[str, str]) -> str:
    from slime_swe.data_sources.registry import with_options  # which knows every corpus: a recipe is made without

    return with_options(spec, options)


@dataclass(frozen=True)
class Algorithm:
    """The policy-gradient loss.

    estimator: what the clipped ratio is, and what it does: `grpo` (a token's; none of its gradient passes beyond the
        clip), `gspo` (a training sequence's, by its tokens' mean) or `cispo` (a token's; a clipped one still weighs the
        token's gradient).
    reduction: what a trained token weighs in a step's loss: `trajectory` (1 / its episode's trained tokens / episodes,
        GRPO's: less in a long episode), `token` (1 / the step's trained tokens, DAPO's) or `constant`
        (1 / `rollout.max_context` / episodes, Dr. GRPO's).
    clip_low: lower clip: the probability ratio is clipped to [1 - clip_low, 1 + clip_high].
    clip_high: upper clip.
    dual_clip: with a negative advantage the ratio counts as this much at most (dual-clip PPO); 0 leaves it out.
    opsm_delta: off-policy sequence masking: a training sequence of negative advantage is left out if its tokens' mean
        of log(old / new probability) is above this; 0 leaves none out.
    keep_old_actor: take the ratio's denominator from a copy of the weights before the last update, which are those that
        sampled where SLiME samples a rollout while it trains on the one before.
    kl_coef: weight of the KL penalty to the starting policy; 0 leaves it out.
    kl_type: estimator of the KL penalty.
    kl_in: where the penalty applies: a term of the `loss`, or subtracted from the `reward`.
    kl_unbiased: weigh the KL estimate by the probability ratio.
    entropy_coef: weight of the entropy bonus.
    mismatch: how the loss corrects for a server that computes other probabilities than the trainer, by a token's ratio
        of these: `none`, `truncate` (weigh the token by the ratio, held within the bounds: TIS), `icepop` (by the
        ratio, and by 0 out of the bounds) or `mis` (as `icepop`, and a token out of the bounds is in no part of the
        loss; nor is its whole training sequence if the ratio is below `mismatch_veto`).
    mismatch_low: lower bound of the ratio.
    mismatch_high: upper bound of the ratio.
    mismatch_veto: with `mis`, the ratio of a token that takes its whole sequence out; 0 takes none out.
    rollout_logprobs: take the ratio's denominator from the server instead of recomputing it in the trainer.
    routing_replay: experts that a mixture of experts reuses in training: `none`, `train` (the trainer's own, from the
        log-probability pass) or `rollout` (the server's).
    normalize_rewards: subtract the group's mean.
    std_normalization: divide by the group's standard deviation too.
    steps_per_rollout: optimizer steps on each rollout.
    lora_rank: train an adapter of this rank beside the layers `lora_targets`, and leave the weights as they are (LoRA);
        0 trains the weights. `engine=miles` alone.
    lora_alpha: what the adapter's output counts is this over its rank; 0 is the rank, so 1.
    lora_targets: linear layers that get an adapter, by Megatron's names: `linear_qkv`, `linear_proj`, `linear_fc1`,
        `linear_fc2`; empty for all four. Experts have those of a feed-forward layer, each its own.
    post_process: dotted path of the plug-in that turns rewards into advantages.
    group_filter: dotted path of the plug-in that drops groups; empty keeps all.
    """

    estimator: Annotated[str, one_of("grpo", "gspo", "cispo")] = "grpo"
    reduction: Annotated[str, one_of("trajectory", "token", "constant")] = "trajectory"
    clip_low: Annotated[float, Meta(ge=0, le=1)] = 0.2
    clip_high: Weight = 0.2
    dual_clip: Weight = 0.0
    opsm_delta: Weight = 0.0
    keep_old_actor: bool = False
    kl_coef: Weight = 0.0
    kl_type: Annotated[str, one_of("k1", "k2", "k3", "low_var_kl")] = "low_var_kl"
    kl_in: Annotated[str, one_of("loss", "reward")] = "loss"
    kl_unbiased: bool = False
    entropy_coef: Weight = 0.0
    mismatch: Annotated[str, one_of("none", "truncate", "icepop", "mis")] = "none"
    mismatch_low: Annotated[float, Meta(ge=0, le=1)] = 0.0
    mismatch_high: Annotated[float, Meta(ge=1)] = 2.0
    mismatch_veto: Share = 1e-4
    rollout_logprobs: bool = False
    routing_replay: Annotated[str, one_of("none", "train", "rollout")] = "none"
    normalize_rewards: bool = True
    std_normalization: bool = True
    steps_per_rollout: Size = 1
    lora_rank: Count = 0
    lora_alpha: Count = 0
    lora_targets: Annotated[
        list[Annotated[str, one_of(*TARGETS)]], Meta(description=f"a list of {', '.join(TARGETS)}")
    ] = field(default_factory=list)
    post_process: Hook = "slime_swe.rewards.slime_plugin.post_process"
    group_filter: OptionalHook = "slime_swe.rewards.slime_plugin.keep_group"


@dataclass(frozen=True)
class Optimizer:
    """The optimizer, AdamW.

    lr: learning rate, after the warm-up.
    schedule: `constant`, or `linear` down to zero at the run's last step.
    warmup_steps: optimizer steps of linear warm-up.
    beta1: AdamW's decay of the first moment.
    beta2: AdamW's decay of the second moment.
    eps: AdamW's epsilon.
    weight_decay: AdamW's weight decay.
    clip_grad: bound of the global gradient norm; 0 does not clip.
    cpu_offload: keep the optimizer's states in host memory, and step there.
    """

    lr: Positive
    schedule: Annotated[str, one_of("constant", "linear")] = "constant"
    warmup_steps: Count = 0
    beta1: Share = 0.9
    beta2: Share = 0.95
    eps: Positive = 1e-8
    weight_decay: Weight = 0.0
    clip_grad: Weight = 1.0
    cpu_offload: bool = False


@dataclass(frozen=True)
class Run:
    """One execution.

    name: folder under `dir`; empty makes one from recipe, seed and time.
    dir: folder of all runs.
    seed: of task order, sampling and everything else that is random.
    num_rollouts: length of the run; 0 evaluates the model and ends.
    eval_interval: rollouts between evaluations; 0 evaluates before and after only.
    save_interval: rollouts between checkpoints.
    save_every_minutes: the most minutes from one checkpoint to the next, however long a step takes: one is saved after
        a step where it would be later after another; 0 saves by `save_interval` alone.
    keep_checkpoints: how many of the newest checkpoints stay; 0 keeps all. Under SLiME the one before them stays until
        the next rollout begins.
    keep_exports: the same of the policy in Hugging Face format, which SLiME writes with each checkpoint.
    keep_best: a set of `data.eval`. The checkpoint and the export of the rollout after which the most of its episodes
        solved their task stay beside the newest; empty keeps none for that.
    trackers: where figures are shown beside the run's own files: `wandb`, `trackio` (not under SLiME, which has none),
        `tensorboard` (files in the run's folder).
    project: project in Weights & Biases and trackio.
    """

    num_rollouts: Count
    name: Annotated[str, Meta(pattern=r"^(?!\.{1,2}\Z)[\w.+=-]*\Z", description="a folder name")] = ""
    dir: Folder = "runs"
    seed: Count = 0
    eval_interval: Count = 0
    save_interval: Size = 1
    save_every_minutes: Weight = 0.0
    keep_checkpoints: Count = 2
    keep_exports: Count = 0
    keep_best: str = ""
    trackers: Annotated[
        list[Annotated[str, one_of(*TRACKERS)]], Meta(description=f"a list of {', '.join(TRACKERS)}")
    ] = field(default_factory=list)
    project: Annotated[str, Meta(min_length=1, description="a project's name")] = "slime-swe"


@dataclass(frozen=True)
class Alarms:
    """The limits above which a run warns. A share is the mean of the last five rollouts, and 1 raises no alarm. The
    values are those of miles' dashboard, but for the last two.

    broken: share of the episodes that infrastructure broke.
    truncated: share of the episodes that a limit ended: turns, context, tokens of a reply, time.
    uninformative: share of the groups whose episodes all solved their task, or none, so that they teach nothing.
    lost_prefixes: share of the prompt tokens that an engine had in its cache, and computed again.
    stall: how often the median of the rollouts before a rollout takes, where it takes half an hour at least; 0 raises
        none.
    gap: nats by which the log-probabilities of trainer and engines differ, with the same weights, in the first rollout
        of which that is known.
    drift: how often that first difference a later one is, where it is more than 0.001 nats; 0 raises none.
    """

    broken: Rate = 0.05
    truncated: Rate = 0.25
    uninformative: Rate = 0.5
    lost_prefixes: Rate = 0.5
    stall: Weight = 6.0
    gap: Weight = 0.1
    drift: Weight = 3.0


@dataclass(frozen=True)
class WarmStart:
    """Supervised training on recorded episodes, before the first rollout.

    data: a file that `slime-swe sft` has written; empty for none.
    epochs: how often each episode is trained, at least: the last batch is filled up from the next epoch.
    batch_size: episodes of one optimizer step.
    lr: learning rate, which falls linearly to zero.
    """

    data: str = ""
    epochs: Size = 3
    batch_size: Size = 64
    lr: Positive = 1e-5


@dataclass(frozen=True)
class Forecast:
    """The episodes that are expected of the untrained policy, until a first run measures them.

    The planner counts with it. A run takes two bounds of its sampling from it: how many episodes it begins with
    (`context`), and the cap that `rollout.max_over_sampling=0` stands for (`solved`).

    solved: share of the training episodes that solve their task; by default that of Qwen3-30B-A3B-Instruct on SWE-bench
        Verified (22.2 %, by uni-agent's README).
    context: an episode's length at its end, as a share of `rollout.max_context`, on average.
    sampled: tokens that the policy sampled, as a share of that length.
    turns: model calls, as a share of `rollout.max_turns`, on average.
    """

    solved: Annotated[float, Meta(gt=0, lt=1)] = 0.22
    context: Part = 0.5
    sampled: Part = 0.3
    turns: Part = 0.5


@dataclass(frozen=True)
class Slime:
    """Flags of SLiME, Megatron and SGLang beside the fields of the recipe.

    flags: flag without its dashes -> value: true for a switch, else a number, a text or a list. No flag that a field of
        the recipe sets is taken. The planner counts nothing of what they change.
    """

    flags: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """A complete run.

    name: the recipe's name, and the start of its runs' names.
    description: what the recipe is, for people.
    hardware: what it needs, for people.
    engine: what turns samples into gradients: `slime` (a Ray job on GPUs), `miles` (the same with SLiME's fork),
        `embedded` (in process, no GPU needed) or `slime_cpu` (real SLiME and Megatron on a CPU, with the embedded
        server as its rollout engine).
    """

    name: str
    description: str
    hardware: str
    model: Model
    rollout: Rollout
    data: Data
    optimizer: Optimizer
    run: Run
    engine: str = "embedded"
    cluster: Cluster = field(default_factory=Cluster)
    parallel: Parallel = field(default_factory=Parallel)
    serving: Serving = field(default_factory=Serving)
    reward: Reward = field(default_factory=Reward)
    algorithm: Algorithm = field(default_factory=Algorithm)
    alarms: Alarms = field(default_factory=Alarms)
    warm_start: WarmStart = field(default_factory=WarmStart)
    slime: Slime = field(default_factory=Slime)
    forecast: Forecast = field(default_factory=Forecast)

    @property
    def informative(self) -> Informative:
        """The share of the recipe's groups that passes the filter, by its forecast; 1 where none is dropped: single
        episodes can't differ."""
        size = self.rollout.samples_per_task
        filtered = self.algorithm.group_filter and size > 1
        return informative_of(self.forecast.solved, size) if filtered else Informative(1.0, 1.0, 1.0)

    @property
    def alarm_limits(self) -> dict[str, float]:
        """The limits of `alarms` by name. Groups that can't differ, of single or of recorded episodes, raise none."""
        alone = self.rollout.samples_per_task == 1 or self.supervised
        return asdict(self.alarms) | ({"uninformative": 1.0} if alone else {})

    @property
    def max_over_sampling(self) -> float:
        """`rollout.max_over_sampling`; where that is 0, with room for a share half of that expected."""
        return self.rollout.max_over_sampling or 2 / self.informative.expected

    @property
    def supervised(self) -> bool:
        """True where recorded episodes are trained by their tokens' cross entropy, as in the stage of `warm_start`."""
        return self.data.source == RECORDED_SOURCE

    @property
    def data_parallel(self) -> int:
        """Copies of the model that the trainer holds; 0 where its GPUs are too few for one."""
        return self.cluster.train_gpus // (self.parallel.tp * self.parallel.pp * self.parallel.cp)

    @property
    def most_checkpoints(self) -> int:
        """The most checkpoints that lie in the run's folder at once. SLiME ends one of `async-save` when it begins the
        next. miles marks no adapter's as whole, so that all of them stay."""
        keep = 0 if self.algorithm.lora_rank else self.run.keep_checkpoints
        return self._most(keep, bool(self.slime.flags.get("async-save")))

    @property
    def most_exports(self) -> int:
        """The most exports of the policy, in Hugging Face format, that lie there at once."""
        return self._most(self.run.keep_exports)

    @property
    def save_every_minutes(self) -> float:
        """`run.save_every_minutes`; 0 for adapters, of which miles goes on from none, so that all would lie there for
        nothing."""
        return 0.0 if self.algorithm.lora_rank else self.run.save_every_minutes

    def _most(self, keep: int, unfinished: int = 0) -> int:
        """Count what may lie there at once: the newest is written before the oldest goes."""
        run = self.run
        total = run.num_rollouts if self.save_every_minutes else -(-run.num_rollouts // max(1, run.save_interval))
        return min(total, keep + 1 + unfinished + bool(run.keep_best)) if keep else total

"""What an engine does where engines differ: computed, by small questions.

An engine is a function `attend(q, k, v, ...)`; the options that it offers are
the names of its parameters. Each behaviour is one small input, and its possible
answers are computed here in float64. Five conventions are settled first, and
all later answers are computed in them. An output that is no answer, or one that
is always a fault, is compared with those of the catalogued mistakes, which run
in the plain forms. A cache, the class `Cache` of an adapter, is compared with
lists in many histories.
"""

import importlib
import importlib.util
import inspect
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnref.judge.arrays import as_tensor, in_words, one_line
from attnref.judge.catalogue import PLAIN, Plain, catalogue, place_of
from attnref.judge.differences import largest, largest_difference
from attnref.judge.histories import ROOM, operations, shortest
from attnref.words import Text, message

OPTIONS = {"mask", "causal", "scale", "softcap", "sinks", "window", "dropout"}
OPTIONS |= {"log_sum_exp"}
# The functions of an adapter, and their first arguments. `attend` must be
# there, or a class `Cache`.
FUNCTIONS = {
    "attend": ("q", "k", "v"),
    "gradients": ("q", "k", "v", "cotangent"),
    "rotate": ("x", "positions", "theta"),
}
ENGINES = "attnref.judge.engines"
REFUSED, ABSENT, OTHER = "refused", "not-offered", "other"
DIFFERS = "differs"  # a cache, from lists
# Conventions that add an answer to others.
NUMBERS = "added", "nonzero-may-attend", "nonzero-is-hidden"
POLARITIES = "true-may-attend", "true-is-hidden"
TOLERANCE = 2e-3  # of the largest element: engines compute in float32
Answers = dict[str, Tensor]


class RefusalError(Exception):
    """An engine raised an error: what it said."""


class ReturnError(Exception):
    """What an adapter returned is not what it should: in words."""


@dataclass(frozen=True)
class Conventions:
    """What is no mistake, but must be known to ask for more."""

    scale: str = "width"
    heads: str = "contiguous"
    polarity: str = "true-may-attend"
    alignment: str = "bottom-right"
    window: str = "W"
    log_sum_exp: str = "natural"
    numbers: str = "added"  # what numbers of a mask do
    dtype: torch.dtype = torch.float64  # in which answers are computed

    def shared(self, x: Tensor, H: int) -> Tensor:
        """Keys or values `(B, K, S, D)` of each query head `(B, H, S, D)`."""
        G = H // x.shape[1]
        if self.heads == "interleaved":
            return x.repeat(1, G, 1, 1)
        return x.repeat_interleave(G, dim=1)

    def bools(self, mask: Tensor) -> Tensor:
        """A mask, True = may attend, as the engine reads it."""
        if self.polarity == "numbers":
            return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
        return mask if self.polarity == "true-may-attend" else ~mask

    def attend(
        self,
        plain: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """The output by the plain forms, right or with a mistake in them."""
        # Copies, since one of the mistakes is to write into the inputs.
        H, dtype = q.shape[1], self.dtype
        q, k, v = (self.shared(x.to(dtype), H).clone() for x in (q, k, v))
        if self.scale == "one":
            q = q * q.shape[-1] ** 0.5
        if sinks is not None:
            sinks = sinks.to(dtype)
            out = plain.sinks.attention_with_sinks(q, k, v, sinks, mask)
        elif softcap is not None or bias is not None:
            form = plain.alibi.biased_attention
            bias = None if bias is None else bias.to(dtype)
            out = form(q, k, v, bias, softcap, mask)
        else:
            out = plain.attention.attention(q, k, v, mask)
        assert isinstance(out, Tensor)
        return out


def first(outputs: list[Tensor]) -> Tensor:
    return outputs[0]


class Question(NamedTuple):
    """Inputs of one call, and its answers by name.

    `form` computes the output by plain forms that may have a mistake in them;
    `faults` are answers which no convention explains, and `named` those that
    are a mistake of the catalogue; `read` takes from the outputs what is
    compared.
    """

    inputs: dict[str, Any]
    answers: Answers
    form: Callable[[Any], Tensor] | None = None
    faults: tuple[str, ...] = ()
    tolerance: float = TOLERANCE
    read: Callable[[list[Tensor]], Tensor] = first
    named: dict[str, str] = {}  # noqa: RUF012  # mistakes by answer


class Behaviour(NamedTuple):
    id: str
    text: Text  # what is asked
    page: str  # where the site explains it
    needs: tuple[str, ...] = ()  # options of the engine
    call: str = "attend"  # or another of its functions


class Answer(NamedTuple):
    """How an engine behaves; `detail` is what it said or how far it is off."""

    behaviour: str
    engine: str
    answer: str
    mistake: str | None
    page: str
    detail: str = ""
    broken: bool = False  # no output at all, for the adapter is wrong

    def as_json(self) -> dict[str, str | None]:
        return {
            "behaviour": self.behaviour,
            "engine": self.engine,
            "is": self.answer,
            "mistake": self.mistake,
            "words": self.detail,
            "page": self.page,
        }


# ------------------------------------------------------------------- engines


class Engine:
    """A function of NumPy arrays or of tensors, whichever it takes."""

    def __init__(self, name: str, module: Any, attend: str = "attend") -> None:
        self.name, self.modified = name, False
        self.expected: dict[str, str] = getattr(module, "EXPECTED", {})
        names = {**dict.fromkeys(FUNCTIONS), "attend": attend}
        found = {x: getattr(module, y or x, None) for x, y in names.items()}
        self.functions = {x: y for x, y in found.items() if callable(y)}
        self.cache = getattr(module, "Cache", None)
        self.operations = operations_of(self.cache)
        if not (self.cache or "attend" in self.functions):
            raise ValueError(message("{} has no function {}", name, attend))
        check_expected(self.expected)
        function = self.functions.get("attend", lambda q, k, v: v)
        parameters = inspect.signature(function).parameters
        self.options = OPTIONS & parameters.keys()
        # What stands behind q, k and v and is nothing that is asked for.
        self.others = [
            str(x).partition("=")[0].partition(":")[0]
            for x in [*parameters.values()][3:]
            if x.name not in OPTIONS
        ]
        # Options without a default are passed, too, where none is asked for.
        self.blank = {
            x: False if x == "causal" else None
            for x in self.options & parameters.keys()
            if parameters[x].default is inspect.Parameter.empty
        }
        kinds = ["numpy", "torch"]
        if hasattr(module, "torch"):
            kinds.reverse()
        self.arrays = next(filter(self._takes, kinds), kinds[0])

    def offers(self, behaviour: Behaviour) -> bool:
        call, options = behaviour.call, self.options
        if call == "cache":
            options = self.operations
        elif call == "inputs":
            call = "attend"
        return options.issuperset(behaviour.needs) and (
            call in self.functions or (call == "cache" and bool(self.cache))
        )

    def lacks(self, behaviour: Behaviour) -> str:
        """What this behaviour needs and the adapter does not have."""
        call = "attend" if behaviour.call == "inputs" else behaviour.call
        if call == "cache" and self.cache is None:
            return message("there is no class Cache")
        if call == "cache":
            lacking = set(behaviour.needs) - self.operations
            return message("Cache has no {}", ", ".join(sorted(lacking)))
        if call not in self.functions:
            return message("there is no function {}", call)
        lacking = set(behaviour.needs) - self.options
        text = "attend has no argument {}"
        return message(text, ", ".join(sorted(lacking)))

    def _takes(self, arrays: str) -> bool:
        self.arrays, x = arrays, torch.ones(1, 1, 1, 2)
        try:
            self("attend", {"q": x, "k": x, "v": x})
        except RefusalError:
            return False
        except ReturnError:
            pass  # it took them
        return True

    def __call__(self, function: str, inputs: dict[str, Any]) -> list[Tensor]:
        arrays = {
            name: self.array(x) if isinstance(x, Tensor) else x
            for name, x in inputs.items()
        }
        options = {**(self.blank if function == "attend" else {}), **arrays}
        tensors = [options.pop(name) for name in FUNCTIONS[function]]
        try:
            output = self.functions[function](*tensors, **options)
        except (Exception, SystemExit) as error:
            raise RefusalError(one_line(error)) from error
        outputs = as_tensors(output, function, inputs)
        self.modified |= any(
            distance(as_tensor(arrays[name]), x) > 0
            for name, x in inputs.items()
            if isinstance(x, Tensor)
        )
        return outputs

    def array(self, x: Tensor) -> Any:
        return (
            x.clone() if self.arrays == "torch" else x.numpy().copy(order="K")
        )


def as_tensors(
    output: Any, function: str, inputs: dict[str, Any]
) -> list[Tensor]:
    """As many as this function should return."""
    count = 3 if function == "gradients" else 1
    if inputs.get("log_sum_exp"):
        count, function = 2, "attend(log_sum_exp=True)"
    several = isinstance(output, tuple | list)
    try:
        outputs = [*map(as_tensor, output if several else [output])]
        kinds = [x.dtype for x in outputs]
    except Exception:  # NumPy has no array of it
        kinds = []
    if len(kinds) != count or any(x.is_complex for x in kinds):
        right = message("an array" if count == 1 else "{} arrays", count)
        text = "{} returned {}, not {}"
        raise ReturnError(message(text, function, in_words(output), right))
    for name, x in zip("qkv", outputs if count == 3 else (), strict=False):
        if x.shape != inputs[name].shape:
            text = "the gradient of {} is {}, not {}"
            shapes = (*x.shape,), (*inputs[name].shape,)
            raise ReturnError(message(text, name, *shapes))
    return outputs


def operations_of(kind: Any) -> set[str]:
    """What a class of caches can do; without one, nothing."""
    if kind is None:
        return set()
    try:
        cache = kind()
    except Exception as error:
        text = "Cache() raises {}: it is made without arguments"
        raise ValueError(message(text, one_line(error))) from error
    if not callable(getattr(cache, "append", None)):
        raise ValueError(message("Cache has no append"))
    window = getattr(cache, "window", None)
    if window is not None and not 0 < window < ROOM:
        text = "Cache.window is {}: write one below {}, such as 4"
        raise ValueError(message(text, window, ROOM))
    return operations(kind)


def known_answers(behaviour: Behaviour) -> list[str]:
    """The words that an engine may get, but for OTHER and DIFFERS."""
    if behaviour.call == "cache":
        return ["right", REFUSED, ABSENT]
    if behaviour.call == "inputs":
        return ["unchanged", "modified", ABSENT]
    names = dict[str, None]()
    for numbers, polarity in product(NUMBERS, POLARITIES):
        conventions = Conventions(numbers=numbers, polarity=polarity)
        names |= dict.fromkeys(question_of(behaviour.id, conventions).answers)
    return [*names, REFUSED, ABSENT]


def check_expected(expected: dict[str, str]) -> None:
    """Raise an error for what no engine can be expected to do."""
    for id, answer in dict(expected).items():
        if id not in behaviours():
            raise ValueError(message("EXPECTED: there is no behaviour {}", id))
        answers = known_answers(behaviours()[id])
        if answer not in (*answers, OTHER, DIFFERS):
            text = "EXPECTED: {} has no answer {}; it has {}"
            names = message(", ").join(answers)
            raise ValueError(message(text, id, answer, names))


def load(path: str) -> Engine:
    """An adapter: `my_engine.py`, or `my_engine.py:attend`."""
    file, _, function = path.partition(":")
    name = Path(file).stem
    spec = importlib.util.spec_from_file_location(name, file)
    if not Path(file).is_file() or spec is None or spec.loader is None:
        raise ValueError(message("there is no file {}", file))
    module = importlib.util.module_from_spec(spec)
    folder = str(Path(file).resolve().parent)
    sys.path.insert(0, folder)  # as for a script: what lies beside it
    try:
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise ValueError(one_line(error)) from error
        return Engine(name, module, function or "attend")
    except Exception as error:
        ours = isinstance(error, ValueError)
        said = str(error) if ours else one_line(error)
        raise ValueError(message("{}: {}", file, said)) from error
    finally:
        sys.path.remove(folder)


def known() -> dict[str, Path]:
    """The adapters of this package, by the names of their engines."""
    folder = Path(__file__).with_name("engines")
    return {x.stem: x for x in sorted(folder.glob("[!_]*.py"))}


def builtin(name: str) -> Engine:
    """One of these adapters: a module of the package, since in a folder of
    its own on the path it would hide the library that it calls."""
    try:
        return Engine(name, importlib.import_module(f"{ENGINES}.{name}"))
    except ImportError as error:
        raise ValueError(message("{}: {}", name, one_line(error))) from error


def installed() -> list[str]:
    """The engines whose libraries are installed here."""
    result = []
    for name, path in known().items():
        library = path.read_text("utf-8").partition("Needs ")[2].split(".")[0]
        if all(importlib.util.find_spec(x) for x in library.split(", ")):
            result.append(name)
    return result


# ---------------------------------------------------------------- comparing


def distance(output: Tensor, answer: Tensor) -> float:
    """The largest difference, of the largest element; infinite if one is NaN
    or infinite where the other is not, or the shapes differ."""
    return largest_difference(output, answer) / (largest(answer) or 1.0)


def nearest(output: Tensor, question: Question) -> tuple[str, float]:
    """The answer that the output is, or OTHER; and the least distance."""
    gaps = {x: distance(output, y) for x, y in question.answers.items()}
    name = min(gaps, key=gaps.__getitem__)
    tolerance = max(question.tolerance, precision(output))
    return (name if gaps[name] <= tolerance else OTHER), gaps[name]


def precision(output: Tensor) -> float:
    """How far rounding takes an output of this dtype: bfloat16 has 8 bits."""
    return 0.03 if output.dtype == torch.bfloat16 else 0.0


# The functions of plain forms that compute what an engine does: attention
# alone, without projections.
FORMS = {
    f"{PLAIN}attention": ("attention",),
    f"{PLAIN}masks": ("causal_mask", "window_mask"),
    f"{PLAIN}alibi": ("biased_attention",),
    f"{PLAIN}sinks": ("attention_with_sinks",),
}
TILED = {f"{PLAIN}flash": ("flash",)}
TILES = 1, 2, 64  # an engine's own are not known; five keys fit into 64


class Tiled:
    """Plain forms whose attention is computed by tiles."""

    def __init__(self, plain: Plain, tile: int) -> None:
        self.plain, self.tile = plain, tile
        self.attention = SimpleNamespace(attention=self.by_tiles)

    def __getattr__(self, stem: str) -> Any:
        return getattr(self.plain, stem)

    def by_tiles(self, *tensors: Tensor | None) -> Tensor:
        out, _ = self.plain.flash.flash(*tensors, tile=(self.tile,) * 2)
        assert isinstance(out, Tensor)
        return out


@cache
def wrong_forms(tile: int | None = None) -> tuple[tuple[str, Any], ...]:
    """The plain forms with each mistake that the catalogue has in them."""
    functions = FORMS if tile is None else TILED
    forms = tuple(
        (mistake.id, Plain(variant))
        for mistake in catalogue().values()
        for variant in mistake.variants
        if all(
            place_of(lines)[:1]
            and place_of(lines)[0] in functions.get(lines.module, ())
            for lines in variant
        )
    )
    if tile is None:
        return forms
    return tuple((mistake, Tiled(plain, tile)) for mistake, plain in forms)


@cache
def question_of(id: str, conventions: Conventions) -> Question:
    questions = importlib.import_module("attnref.judge.questions")
    ask: Callable[[Conventions], Question]
    ask = getattr(questions, id.replace("-", "_"))
    return ask(conventions)


@cache
def wrong_outputs(
    id: str, conventions: Conventions, tile: int | None = None
) -> tuple[tuple[str, Tensor], ...]:
    """What each mistake computes, in double precision and in single."""
    outputs = []
    for dtype in (torch.float64, torch.float32):
        form = question_of(id, replace(conventions, dtype=dtype)).form
        if form is None:
            return ()
        for mistake, plain in wrong_forms(tile):
            try:
                outputs.append((mistake, form(plain)))
            except Exception:  # these sizes do not fit into that mistake
                continue
    return tuple(outputs)


def mistakes_of(
    output: Tensor, id: str, conventions: Conventions, tile: int | None
) -> list[str]:
    """The catalogued mistakes whose output this is, the nearest first."""
    gaps = sorted(
        (distance(output, wrong), mistake)
        for mistake, wrong in wrong_outputs(id, conventions, tile)
    )
    tolerance = question_of(id, conventions).tolerance
    near = [mistake for gap, mistake in gaps if gap <= tolerance]
    return [*dict.fromkeys(near)]


def ask(
    engine: Engine,
    behaviour: Behaviour,
    conventions: Conventions,
    tile: int | None = None,
) -> tuple[Answer, list[str]]:
    """The answer, and the mistakes that would give it: those of attention by
    tiles of this size, or without one those of attention at once."""
    id, page = behaviour.id, behaviour.page

    def answer(name: str, detail: str = "") -> Answer:
        if len(detail) > 200:  # what is wrong may stand at either end
            detail = f"{detail[:60]} ... {detail[-130:]}"
        return Answer(id, engine.name, name, None, page, detail)

    if not engine.offers(behaviour):
        return answer(ABSENT, engine.lacks(behaviour)), []
    if behaviour.call == "inputs":  # those of all calls before
        if engine.modified:
            return answer("modified"), ["input-modified"]
        return answer("unchanged"), []
    if behaviour.call == "cache":
        name, history = compared_with_lists(engine, behaviour)
        return Answer(id, engine.name, name, None, page, history), []
    question = question_of(id, conventions)
    try:
        output = question.read(engine(behaviour.call, question.inputs))
    except RefusalError as refusal:
        return answer(REFUSED, str(refusal)), []
    except ReturnError as error:
        return answer(OTHER, str(error))._replace(broken=True), []
    name, gap = nearest(output, question)
    if name in question.named:
        return answer(name), [question.named[name]]
    if name not in (OTHER, *question.faults):
        return answer(name), []
    mistakes = mistakes_of(output, id, conventions, tile)
    far = how_far(output, question, gap) if name == OTHER else ""
    return answer(name, far), mistakes


def how_far(output: Tensor, question: Question, gap: float) -> str:
    """Why an output is no answer: its shape, NaN, or a distance."""
    shapes = {(*x.shape,) for x in question.answers.values()}
    shape, right = (*output.shape,), next(iter(shapes))
    if shape not in shapes:
        text = "the output is {}, not {}"
        if len(shape) == 4 and [shape[n] for n in (0, 2, 1, 3)] == [*right]:
            text = "the output is {}, not {}: swap axes 1 and 2"
        return message(text, shape, right)
    odd = int((~output.isfinite()).sum())
    if odd and gap == torch.inf:
        text = "{} of {} elements are NaN or infinite"
        return message(text, odd, output.numel())
    return message("off by {} of the largest element", f"{gap:.2g}")


def compared_with_lists(
    engine: Engine, behaviour: Behaviour
) -> tuple[str, str]:
    """Whether its cache is as lists are, and the shortest history if not."""
    names = behaviour.needs or sorted(engine.operations - {"pads"})
    found, refused = shortest(engine.cache, names, engine.array)
    if found:
        return DIFFERS, str(found)
    if len(refused) == len(names):
        return REFUSED, " ".join(refused.values())
    return "right", ""


def conform(
    engine: Engine, asking: Callable[[str], None] | None = None
) -> list[Answer]:
    """All behaviours of an engine, in the order of the table.

    `asking` is told of each before it is asked. Several mistakes may have the
    same output; of these that one is named which explains most of the answers.
    If every call of `attend` fails, it is an error: nothing was asked.
    """
    rows = answers_in_order(engine, asking)
    wrong = [n for n, row in enumerate(rows) if row[1].answer == OTHER]
    for tile in TILES:
        if wrong and not any(mistakes for *_, mistakes in rows):
            for n in wrong:
                behaviour = behaviours()[rows[n][1].behaviour]
                asked = ask(engine, behaviour, rows[n][0], tile)
                rows[n] = (rows[n][0], *asked)
    explained = Counter(x for *_, mistakes in rows for x in mistakes)
    answers = [
        answer._replace(mistake=max(mistakes, key=explained.__getitem__))
        if mistakes
        else answer
        for _, answer, mistakes in rows
    ]
    return check_calls(engine, answers)


def check_calls(engine: Engine, answers: list[Answer]) -> list[Answer]:
    """The answers, of which those of a function are broken if each of its calls
    fails. If it is `attend`, nothing was asked, and that is an error."""
    for function in engine.functions:
        of_it = [
            x
            for x in answers
            if behaviours()[x.behaviour].call == function and x.answer != ABSENT
        ]
        if len(of_it) > 1 and all(
            x.answer == REFUSED or x.broken for x in of_it
        ):
            text, words = "{}: every call of {} fails: {}", of_it[0].detail
            if function == "attend":
                raise ValueError(message(text, engine.name, function, words))
            answers = [
                x._replace(broken=True) if x in of_it else x for x in answers
            ]
    return answers


def failure(answer: Answer, expected: dict[str, str]) -> str:
    """Why a test of this answer fails, or "": it is a mistake, or is not what
    the adapter expects; or nothing is expected and no convention has it."""
    name, choice = answer.answer, expected.get(answer.behaviour)
    if answer.mistake:
        return message("the mistake {}", answer.mistake)
    if choice and name != choice:
        text = message("{}, where {} is expected", name, choice)
    elif name == REFUSED and answer.broken and not choice:
        text = message("every call is refused")
    elif name == DIFFERS and not choice:
        text = message("not as lists are")
    elif name == OTHER and not choice:
        text = message("no convention has this output")
    else:
        return ""
    return message("{}: {}", text, answer.detail) if answer.detail else text


def answers_in_order(
    engine: Engine, asking: Callable[[str], None] | None = None
) -> list[tuple[Conventions, Answer, list[str]]]:
    """In the conventions that the answers before have settled, each with the
    mistakes that would give it."""
    conventions, rows = Conventions(), []
    for behaviour in behaviours().values():
        if asking:
            asking(behaviour.id)
        answer, mistakes = ask(engine, behaviour, conventions)
        rows.append((conventions, answer, mistakes))
        field = SETTLES.get(behaviour.id)
        unclear = mistakes or answer.answer in (ABSENT, REFUSED, OTHER)
        if field and not unclear:
            choice: dict[str, Any] = {field: answer.answer}
            conventions = replace(conventions, **choice)
        if field == "polarity" and answer.answer != ABSENT:
            numbers = behaviours()["mask-of-numbers"]
            choice = {"numbers": ask(engine, numbers, conventions)[0].answer}
            if answer.answer == REFUSED and choice["numbers"] == "added":
                choice["polarity"] = "numbers"
            conventions = replace(conventions, **choice)
    return rows


# The behaviours that settle in which conventions the later ones are asked.
SETTLES = {
    "default-scale": "scale",
    "head-order": "heads",
    "mask-polarity": "polarity",
    "alignment": "alignment",
    "window-count": "window",
    "log-sum-exp": "log_sum_exp",
}


@cache
def behaviours() -> dict[str, Behaviour]:
    """All that are asked, from questions.toml."""
    text = Path(__file__).with_name("questions.toml").read_text("utf-8")
    result = {}
    for id, fields in tomllib.loads(text).items():
        words = Text(fields.pop("en"), fields.pop("zh"))
        needs = tuple(fields.pop("needs", ()))
        result[id] = Behaviour(id, words, needs=needs, **fields)
    return result

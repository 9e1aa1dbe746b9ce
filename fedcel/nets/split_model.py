"""Models of any make, cut in two at one of their layers."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from difflib import get_close_matches
from operator import attrgetter, eq, getitem, ne
from typing import Any, NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor, fx, nn

from fedcel.errors import NetError, describe_unforeseen, describe_user_origin
from fedcel.nets.encode_images import call_encoder, evaluation_mode
from fedcel.nets.inference_cost import count_flops

MAX_NEAREST = 5
"""Layers that are named where a cut is refused."""


class CutPoint(NamedTuple):
    """A layer through whose output all of a model's computation flows.

    Attributes:
        layer: Its name, as `named_modules` has it.
        shape: The shape of its output for one image.
    """

    layer: str
    shape: tuple[int, ...]

    @property
    def features(self) -> int:
        """Values that it gives for one image, D."""
        return torch.Size(self.shape).numel()


def split(model: nn.Module, at: str) -> tuple[nn.Module, nn.Module]:
    """Cut a model in two behind one of its layers.

    Both halves share the model's layers and parameters, under the names that these have in the
    model: training a half trains the model. The model itself is left as it is.

    Args:
        model: Any module that can be called with images alone and whose computation torch.fx can
            trace. Layers that it cannot trace stay whole.
        at: Name of the layer whose output is sent. What follows may use that output and the number
            of images only, so that a layer inside a residual block is refused and the block itself
            is not.

    Returns:
        Encoder, from images (B, ...) to features in the layer's own shape, and head, from these to
        what the model returns, or its `logits` where it returns an object that has these.

    Raises:
        NetError: The model cannot be traced, or it cannot be cut there. The encoder raises it where
            the head needs the number of images and would miscount them.
    """
    return TracedModel(model).split(at)


def list_cuts(model: nn.Module, images: Shaped[Tensor, "B ..."]) -> list[CutPoint]:
    """List the layers at which a model can be cut in two, from the first to the last.

    Of layers that end with the same value, such as a block and its last layer, the outermost is
    named. Layers whose output has another first dimension than the images are left out.

    Args:
        model: As in `split`.
        images: One or more that it takes; noise will do.

    Returns:
        The layers; none where every value is used beside later ones.

    Raises:
        NetError: The model cannot be traced, or it refuses the images.
    """
    return [cut.point for cut in TracedModel(model).list_cuts(images)]


class CountedCut(NamedTuple):
    """A layer at which a model can be cut, and the operations up to it.

    Attributes:
        point: The layer.
        operations: Of matrix products and convolutions for one image; a multiplication and an
            addition are two.
    """

    point: CutPoint
    operations: int


class TracedModel:
    """Model that is traced once, and cut at any of its layers.

    Args:
        model: As in `split`.

    Raises:
        NetError: The model cannot be traced.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.graph, self.outputs, self.parts = trace_model(model)
        self.images = next(node for node in self.graph.nodes if node.op == "placeholder")
        self.output = self.graph.output_node()
        self.cuts = self._find_cuts()
        self.module = self._build(self.graph, "Model")

    def list_cuts(
        self, images: Shaped[Tensor, "B ..."], *, is_counted: bool = False
    ) -> list[CountedCut]:
        """List the layers at which the model can be cut, as `list_cuts` does.

        Args:
            images: One or more that it takes.
            is_counted: Whether operations are counted, which takes a second; else they are 0.

        Returns:
            The layers, from the first to the last.

        Raises:
            NetError: The model refuses the images.
        """
        with evaluation_mode(self.model), torch.no_grad():
            call_encoder(self.model, images)  # refuses what the model does
            with count_flops() if is_counted else nullcontext() as counter:
                recorder = CutRecorder(self.module, self.cuts, counter)
                recorder.run(images.clone())  # a layer may work in place
        return recorder.counted

    def split(self, at: str) -> tuple[nn.Module, nn.Module]:
        """Cut the model behind a layer, as `split` does."""
        node = self._find_node(at)
        before, after = list_ancestors(node), list_ancestors(self.output, node)
        encoder = copy_nodes(self.graph, before, {self.images: "images"}, node)
        if any(map(is_count, after)):
            check_rows(encoder, at)
        head = copy_nodes(self.graph, after - {node}, {node: "smashed"}, self.output.args[0])
        return self._build(encoder, "Encoder"), self._build(head, "Head")

    def encode_at(self, layers: Iterable[str]) -> nn.Module:
        """Make an encoder that gives what several layers give, in one pass.

        Args:
            layers: Names of layers at which the model can be cut.

        Returns:
            A module from images (B, ...) to a dict from each name to the layer's output.

        Raises:
            NetError: The model cannot be cut at one of them.
        """
        results = {layer: self._find_node(layer) for layer in layers}
        nodes = set[fx.Node]().union(*map(list_ancestors, results.values()))
        inputs = {self.images: "images"}
        recorded = frozenset(results.values())
        graph = copy_nodes(self.graph, nodes, inputs, results, recorded=recorded)
        return self._build(graph, "Encoders")

    def find_outermost(self, at: str) -> str:
        """Find the outermost layer that ends with a layer's output, as `list_cuts` names it.

        Raises:
            NetError: The model cannot be cut there.
        """
        return self.cuts[self._find_node(at)]

    def _find_node(self, at: str) -> fx.Node:
        """Find the value that is sent; NetError where the model cannot be cut there."""
        node = self.outputs.get(at)
        if node is None or node not in self.cuts:
            raise NetError(self._describe_refusal(at))
        return node

    def _find_cuts(self) -> dict[fx.Node, str]:
        """Find values on which all that follows depends alone, and the outermost layer of each."""
        names: dict[fx.Node, str] = {}
        for name, node in self.outputs.items():
            if name and (node not in names or len(name) < len(names[node])):
                names[node] = name
        return {
            node: names[node]
            for node in self.graph.nodes
            if node in names
            and node is not self.output.args[0]
            and self.images not in list_ancestors(self.output, node)
        }

    def _describe_refusal(self, at: str) -> str:
        """Describe why the model cannot be cut at a layer, and where it can."""
        names = list(self.cuts.values())
        if at in self.outputs and self.outputs[at] is self.output.args[0]:
            reason = "which is the model's answer: nothing would be left for the head"
        elif at in self.outputs:
            reason = "beside whose output later layers use earlier values or sizes"
        elif at in dict(self.model.named_modules()):
            reason = "which is not called, or gives more than one tensor"
        else:
            reason = f"which {type(self.model).__name__} does not have"
        near = [name for name in names if at.startswith(f"{name}.") or name.startswith(f"{at}.")]
        near = [*near, *get_close_matches(at, names, MAX_NEAREST, 0.4), *names]
        near = list(dict.fromkeys(near))
        shown = ", ".join(near[:MAX_NEAREST]) or "none: there is none"
        more = f", or at {len(near) - MAX_NEAREST} more" if len(near) > MAX_NEAREST else ""
        return f"the cut is at layer {at!r}, {reason}; cut at one of {shown}{more}"

    def _build(self, graph: fx.Graph, name: str) -> fx.GraphModule:
        """Build a part of the model, in the model's mode."""
        part = fx.GraphModule(self.parts, graph, name)
        part.training = self.model.training
        return part


class ImagesAlone(nn.Module):
    """Model that takes images alone, whatever else its `forward` takes, and returns its logits.

    Args:
        model: The model; of an output with an attribute `logits`, such as those of Hugging Face's,
            these are returned.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Any) -> Any:  # a tensor, or the tracer's proxy of one
        """Call the model."""
        output = self.model(images)
        is_value = isinstance(output, fx.Proxy | Tensor)
        return output if is_value else getattr(output, "logits", output)


def strip_root(name: str) -> str:
    """Return the name of a layer of `ImagesAlone` as the model has it; empty for the model."""
    return name.removeprefix("model").removeprefix(".")


class LayerTracer(fx.Tracer):
    """Tracer that notes the output of each layer.

    Args:
        whole: Names of layers that are not looked into.
    """

    def __init__(self, whole: set[str]) -> None:
        super().__init__()
        self.whole = whole
        self.failed: str | None = None
        self.outputs: dict[str, fx.Node] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a layer is not looked into: torch's own, and those that are named."""
        name = strip_root(module_qualified_name)
        is_own = bool(name) and super().is_leaf_module(m, module_qualified_name)
        return is_own or name in self.whole

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Decide a branch: images are of the type of the model, and no other value is known."""
        node, value = obj.node, next(iter(obj.node.args), None)
        if isinstance(value, fx.Node) and node.target in (eq, ne) and "dtype" in value.args:
            return node.target is eq
        return super().to_bool(obj)

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Trace a layer, and note its output, or that it failed."""
        name = strip_root(self.path_of_module(m))
        try:
            output = super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or name  # the innermost
            raise
        if isinstance(output, fx.Proxy):
            self.outputs[name] = output.node
        return output


class CutRecorder(fx.Interpreter):
    """Interpreter that notes shapes of chosen values for one image, and operations up to them.

    Args:
        module: The model as a graph.
        cuts: The values, and the name of each one's layer.
        counter: Counter of all operations; None: they are 0.
    """

    def __init__(
        self, module: fx.GraphModule, cuts: dict[fx.Node, str], counter: Any | None = None
    ) -> None:
        super().__init__(module)
        self.layers = {node.name: layer for node, layer in cuts.items()}
        self.counter = counter
        self.counted: list[CountedCut] = []
        self.count = 0

    def run_node(self, n: fx.Node) -> Any:
        """Compute a value."""
        value = super().run_node(n)
        if n.op == "placeholder" and isinstance(value, Tensor):
            self.count = len(value)
        elif n.name not in self.layers or not isinstance(value, Tensor):
            return value
        elif value.shape[:1] == (self.count,):
            operations = 0 if self.counter is None else self.counter.get_total_flops()
            point = CutPoint(self.layers[n.name], tuple(value.shape[1:]))
            self.counted.append(CountedCut(point, operations // self.count))
        return value


def trace_model(model: nn.Module) -> tuple[fx.Graph, dict[str, fx.Node], dict[str, Any]]:
    """Trace the computation of a model; NetError where its own `forward` cannot be traced.

    Returns the graph; the node of each layer's last output, by the layer's name; and layers,
    parameters and constants, by the names that they have in the graph.
    """
    root, whole = ImagesAlone(model), set[str]()
    while True:
        tracer = LayerTracer(whole)
        try:
            with evaluation_mode(model):
                graph = tracer.trace(root)
            break
        except Exception as error:
            if not tracer.failed or tracer.failed in whole:
                origin = describe_user_origin(error)
                raise NetError(
                    f"{type(model).__name__} cannot be traced: {describe_unforeseen(error)}"
                    f"{f' ({origin})' if origin else ''}; make what depends on values of the image "
                    "a layer of its own"
                ) from error
            whole.add(tracer.failed)
    parts = {}
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            value = attrgetter(node.target)(root)
            node.target = strip_root(node.target)
            parts[node.target] = value
    follow_changes_in_place(graph, parts)
    return graph, tracer.outputs, parts


def follow_changes_in_place(graph: fx.Graph, parts: dict[str, Any]) -> None:
    """Let what comes after a change in place, such as `x.clamp_(0, 1)`, depend on its result.

    A model need not use what the change returns. Sizes stay as they were.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if changes_in_place(node, parts):

            def is_later(user: fx.Node, place: int = order[node]) -> bool:
                reads_size = user.target == "size" or "shape" in user.args
                return order[user] > place and not reads_size

            node.args[0].replace_all_uses_with(node, delete_user_cb=is_later)


def changes_in_place(node: fx.Node, parts: dict[str, Any]) -> bool:
    """Whether a layer, method or function changes its first argument."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_module":
        return bool(getattr(parts[str(node.target)], "inplace", False))
    name = str(getattr(node.target, "__name__", node.target))
    is_marked = name.endswith("_") and not name.endswith("__")
    return node.op.startswith("call") and (is_marked or node.kwargs.get("inplace") is True)


def list_ancestors(node: fx.Node, stop: fx.Node | None = None) -> set[fx.Node]:
    """List a value and all that it is computed from, nothing beyond `stop`.

    Behind `stop`, the number of images is given: that of its rows. Any other size is computed.
    """
    ancestors, waiting = {node}, [node]
    while waiting:
        value = waiting.pop()
        for part in () if stop and is_count(value) else value.all_input_nodes:
            if part not in ancestors:
                ancestors.add(part)
                if part is not stop:
                    waiting.append(part)
    return ancestors


def is_count(node: fx.Node) -> bool:
    """Whether a value is the number of images: `images.size(0)` or `images.shape[0]`."""
    match node.args:
        case (fx.Node(op="placeholder"), 0):
            return (node.op, node.target) == ("call_method", "size")
        case (fx.Node(args=(fx.Node(op="placeholder"), *of)) as shape, 0):
            shapes = ("call_function", getattr, "shape"), ("call_method", "size")
            return node.target is getitem and (shape.op, shape.target, *of) in shapes
    return False


def check_rows(encoder: fx.Graph, at: str) -> None:
    """Let an encoder refuse images whose number is not that of its features' rows."""
    images, output = next(iter(encoder.nodes)), encoder.output_node()
    with encoder.inserting_before(output):
        rows = encoder.call_function(return_rows, (*output.args, images, at))
    rows.meta["is_wrapped"] = True  # tracing the encoder, as pickle does, keeps the call
    output.args = (rows,)


def return_rows(
    features: Shaped[Tensor, "..."], images: Shaped[Tensor, "B ..."], at: str
) -> Shaped[Tensor, "..."]:
    """Return features; NetError where they have no row for each image."""
    if features.shape[:1] != images.shape[:1]:
        raise NetError(
            f"the cut is at layer {at!r}, whose output {tuple(features.shape)} has no row for each "
            f"of {len(images)} images, and later layers use their number; cut at a layer that "
            "fedcel.list_cuts names"
        )
    return features


def copy_nodes(
    graph: fx.Graph,
    nodes: set[fx.Node],
    inputs: dict[fx.Node, str],
    result: Any,
    *,
    recorded: frozenset[fx.Node] = frozenset(),
) -> fx.Graph:
    """Copy a part of a graph, with inputs by name and what it returns; some are `recorded`.

    These are returned as they are computed, whatever later layers do to them in place.
    """
    part, copies, results = fx.Graph(), dict[fx.Node, fx.Node](), dict[fx.Node, fx.Node]()
    for node, name in inputs.items():
        placeholder = part.placeholder(name)
        copies[node] = part.call_method("clone", (placeholder,))  # a layer may work in place
    for node in graph.nodes:
        if node in nodes and node not in copies and node.op not in ("placeholder", "output"):
            if is_count(node) and copies.keys().isdisjoint(node.all_input_nodes):
                copies[node] = part.call_method("size", (next(iter(part.nodes)), 0))
            else:
                copies[node] = part.node_copy(node, copies.__getitem__)
            if node in recorded:
                results[node] = part.call_method("clone", (copies[node],))
    part.output(fx.map_arg(result, (copies | results).__getitem__))
    return part

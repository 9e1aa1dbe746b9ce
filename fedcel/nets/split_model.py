"""Models of any make, cut in two at one of their layers."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from operator import attrgetter, eq, ne
from typing import Any, NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor, fx, nn

from fedcel.errors import NetError, describe_unforeseen, describe_user_origin
from fedcel.nets.encode_images import call_encoder, evaluation_mode

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
        at: Name of the layer whose output is sent. What follows may use that output only, so that
            a layer inside a residual block is refused and the block itself is not.

    Returns:
        Encoder, from images (B, ...) to features in the layer's own shape, and head, from these to
        what the model returns, or its `logits` where it returns an object that has these.

    Raises:
        NetError: The model cannot be traced, or it cannot be cut there.
    """
    trace = trace_model(model)
    cuts = find_cuts(trace)
    node = trace.outputs.get(at)
    if node is None or node not in cuts:
        raise NetError(describe_refusal(trace, cuts, at, model))
    before, after = list_ancestors(node), list_ancestors(trace.output, node)
    encoder = copy_nodes(trace.graph, before, {trace.images: "images"}, node)
    head = copy_nodes(trace.graph, after - {node}, {node: "smashed"}, trace.output.args[0])
    halves = (
        fx.GraphModule(trace.parts, encoder, "Encoder"),
        fx.GraphModule(trace.parts, head, "Head"),
    )
    for half in halves:
        half.training = model.training
    return halves


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
    trace = trace_model(model)
    cuts = find_cuts(trace)
    recorder = ShapeRecorder(fx.GraphModule(trace.parts, trace.graph), cuts)
    with evaluation_mode(model), torch.no_grad():
        call_encoder(model, images)  # refuses what the model does
        recorder.run(images)
    return [CutPoint(cuts[node], shape) for node, shape in recorder.shapes.items()]


class Trace(NamedTuple):
    """The computation of a model.

    Attributes:
        graph: Its graph.
        images: The node of the images.
        output: The node of what is returned.
        outputs: The node of each layer's last output, by the layer's name.
        parts: Layers, parameters and constants, by the names that they have in the graph.
    """

    graph: fx.Graph
    images: fx.Node
    output: fx.Node
    outputs: dict[str, fx.Node]
    parts: dict[str, Any]


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


class ShapeRecorder(fx.Interpreter):
    """Interpreter that notes the shape of chosen values for one image.

    Args:
        module: The model as a graph.
        nodes: The values.
    """

    def __init__(self, module: fx.GraphModule, nodes: Iterable[fx.Node]) -> None:
        super().__init__(module)
        self.nodes = {node.name: node for node in nodes}
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}
        self.count = 0

    def run_node(self, n: fx.Node) -> Any:
        """Compute a value."""
        value = super().run_node(n)
        node = self.nodes.get(n.name)
        if n.op == "placeholder" and isinstance(value, Tensor):
            self.count = len(value)
        elif node is not None and isinstance(value, Tensor) and value.shape[:1] == (self.count,):
            self.shapes[node] = tuple(value.shape[1:])
        return value


def trace_model(model: nn.Module) -> Trace:
    """Trace the computation of a model; NetError where its own `forward` cannot be traced."""
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
    images = next(node for node in graph.nodes if node.op == "placeholder")
    output = next(node for node in graph.nodes if node.op == "output")
    return Trace(graph, images, output, tracer.outputs, parts)


def find_cuts(trace: Trace) -> dict[fx.Node, str]:
    """Find the values on which all that follows depends alone, and the outermost layer of each."""
    names: dict[fx.Node, str] = {}
    for name, node in trace.outputs.items():
        if name and (node not in names or len(name) < len(names[node])):
            names[node] = name
    result = trace.output.args[0]
    return {
        node: names[node]
        for node in trace.graph.nodes
        if node in names
        and node is not result
        and trace.images not in list_ancestors(trace.output, node)
    }


def list_ancestors(node: fx.Node, stop: fx.Node | None = None) -> set[fx.Node]:
    """List a value and all that it is computed from, nothing beyond `stop`."""
    ancestors, waiting = {node}, [node]
    while waiting:
        for part in waiting.pop().all_input_nodes:
            if part not in ancestors:
                ancestors.add(part)
                if part is not stop:
                    waiting.append(part)
    return ancestors


def copy_nodes(
    graph: fx.Graph, nodes: set[fx.Node], inputs: dict[fx.Node, str], result: Any
) -> fx.Graph:
    """Copy a part of a graph, with inputs by name and what it returns."""
    part, copies = fx.Graph(), {}
    for node, name in inputs.items():
        placeholder = part.placeholder(name)
        copies[node] = part.call_method("clone", (placeholder,))  # a layer may work in place
    for node in graph.nodes:
        if node in nodes and node not in copies and node.op not in ("placeholder", "output"):
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(fx.map_arg(result, copies.__getitem__))
    return part


def describe_refusal(trace: Trace, cuts: dict[fx.Node, str], at: str, model: nn.Module) -> str:
    """Describe why a model cannot be cut at a layer, and where it can."""
    names = list(cuts.values())
    if at in trace.outputs and trace.outputs[at] is trace.output.args[0]:
        reason = "which is the model's answer: nothing would be left for the head"
    elif at in trace.outputs:
        reason = "beside whose output later layers use earlier values"
    elif at in dict(model.named_modules()):
        reason = "which is not called, or gives more than one tensor"
    else:
        reason = f"which {type(model).__name__} does not have"
    near = [name for name in names if at.startswith(f"{name}.") or name.startswith(f"{at}.")]
    near = [*near, *get_close_matches(at, names, MAX_NEAREST, 0.4), *names]
    shown = ", ".join(list(dict.fromkeys(near))[:MAX_NEAREST])
    return f"the cut is at layer {at!r}, {reason}; cut at one of {shown or 'none: there is none'}"

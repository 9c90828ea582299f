"""Quantize an ONNX graph to 8 bits: weights by output, activations by calibration.

An activation is x ≈ scale · (q - zero), with an unsigned byte q for each number. A weight is
w ≈ scale · q, with a signed byte q and a scale for each output (Jacob et al. 2018; Nagel et al.
2021, sec. 2). Linear maps, ungrouped 2-D convolutions and embeddings are quantized; attention,
normalization and softmax stay in float32. `QuantizeLinear` and `DequantizeLinear`, which are
standard ONNX, are written around the maps; runtimes fuse them to products of integers.
"""

import ast
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asr.export.ranges import Batch, Grid, observe
from asr.runtime.files import write_atomically

_FEWEST = 512  # weights of a linear map; smaller ones stay as they are, as in a bundle in 8 bits
_LARGEST = 127
_SCOPES = "pkg.torch.onnx.name_scopes"


def quantize(source: Path, out: Path, batches: Sequence[Batch], keep: Sequence[str] = ()) -> None:
    """Write the graph in `source` in 8 bits to `out`.

    `batches` are inputs by name, for calibration: real utterances, without padding. Maps inside
    the modules named in `keep`, such as "features", stay in float32.
    """
    import onnx

    model = onnx.load(source)
    writer = _Writer(model.graph, keep)
    writer.grids = _calibrate(model, writer.activations(), batches)
    nodes = writer.nodes()
    used = {name for node in nodes for name in node.input}
    constants = [c for c in (*model.graph.initializer, *writer.constants) if c.name in used]
    for node in nodes:
        del node.metadata_props[:]  # torch's: paths and lines of the program that exported it
    for field, values in ((model.graph.node, nodes), (model.graph.initializer, constants)):
        del field[:]
        field.extend(values)
    del model.graph.value_info[:]  # the types of tensors that are bytes now
    onnx.checker.check_model(model)
    write_atomically(out, lambda path: path.write_bytes(model.SerializeToString()))


def to_int8(weight: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 weights and a scale for each index of an axis; errors are at most scale / 2."""
    others = tuple(i for i in range(weight.ndim) if i != axis)
    scale = np.abs(weight).max(others, keepdims=True).astype(np.float32) / np.float32(_LARGEST)
    scale = np.where(scale > 0, scale, np.float32(1))
    return np.rint(weight / scale).astype(np.int8), scale.reshape(-1)


def _calibrate(model: Any, names: Sequence[str], batches: Sequence[Batch]) -> dict[str, Grid]:
    import onnx
    import onnxruntime

    watched, kind = onnx.ModelProto(), onnx.TensorProto.FLOAT
    watched.CopyFrom(model)
    known = {output.name for output in model.graph.output}
    watched.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, kind, None) for name in names if name not in known
    )
    session = onnxruntime.InferenceSession(
        watched.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return observe(session, names, batches)


class _Writer:
    """Writes the nodes of a graph again, the quantized ones in their form for bytes."""

    def __init__(self, graph: Any, keep: Sequence[str]) -> None:
        self._graph = graph
        self._weights = {each.name: each for each in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, list[Any]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._readers[name].append(node)
        chosen = [node for node in graph.node if not _is_inside(node, keep)]
        self._maps = {node.output[0]: node for node in chosen if self._is_map(node)}
        self._tables = {node.output[0] for node in chosen if self._is_table(node)}
        self._paths = {n: self._path(m) for n, m in self._maps.items() if m.op_type == "Conv"}
        self._steps = {node.output[0]: path for path in self._paths.values() for node in path}
        self.grids: dict[str, Grid] = {}
        self._made: dict[str, Any] = {}
        self._bytes: dict[str, str] = {}  # the name of a tensor's bytes, by its own name
        self._nodes: list[Any] = []

    def activations(self) -> list[str]:
        """Return the names of the tensors whose ranges are needed."""
        names = {node.input[0] for node in self._maps.values()}
        return sorted(names | {path[-1].output[0] for path in self._paths.values()})

    @property
    def constants(self) -> list[Any]:
        """Return the new constants of the nodes that were written."""
        return list(self._made.values())

    def nodes(self) -> list[Any]:
        """Return the nodes of the graph in 8 bits."""
        for node in self._graph.node:
            name = node.output[0]
            if name in self._tables:
                self._write_table(node)
            elif name in self._maps:
                self._write_map(node)
            elif name in self._steps:
                self._write_step(node)
            else:
                self._nodes.append(node)
        return self._nodes

    def _is_map(self, node: Any) -> bool:
        if node.op_type not in ("MatMul", "Conv") or node.input[1] not in self._weights:
            return False
        dims = self._weights[node.input[1]].dims
        if node.op_type == "MatMul":
            return len(dims) == 2 and dims[0] * dims[1] >= _FEWEST
        # Features have one channel, and stay in float32: their bytes would cost more accuracy than
        # all of a block's.
        is_alone = all(a.i == 1 for a in node.attribute if a.name == "group")
        return len(dims) == 4 and dims[1] > 1 and is_alone

    def _is_table(self, node: Any) -> bool:
        weight = self._weights.get(node.input[0]) if node.op_type == "Gather" else None
        has_axis = any(a.name == "axis" and a.i for a in node.attribute)
        return weight is not None and len(weight.dims) == 2 and not has_axis

    def _path(self, conv: Any) -> list[Any]:
        """Return a convolution; if a ReLU follows, also the pooling and mask up to it and the ReLU.

        ReLU commutes with pooling and mask, and rounding to a grid whose least value is 0 includes
        it.
        """
        path = [conv]
        while len(readers := self._readers[path[-1].output[0]]) == 1:
            path.append(readers[0])
            if readers[0].op_type == "Relu":
                return path
            if readers[0].op_type != "MaxPool" and not self._mask(readers[0]):
                break
        return [conv]

    def _mask(self, node: Any) -> str | None:
        """Return the Boolean tensor by which a node multiplies, None if it does not."""
        cast = self._makers.get(node.input[1]) if node.op_type == "Mul" else None
        return cast.input[0] if cast is not None and cast.op_type == "Cast" else None

    def _write_map(self, node: Any) -> None:
        """Write a product or convolution of dequantized bytes."""
        is_conv = node.op_type == "Conv"
        x_scale = self.grids[node.input[0]].scale
        node.input[0] = self._rounded(node.input[0])
        weight = self._array(node.input[1])
        q, scale = to_int8(weight, 0 if is_conv else 1)
        node.input[1] = self._meaning(node.input[1], q, scale, 0 if is_conv else 1)
        if is_conv and len(node.input) > 2:  # in 32-bit integers, as the sums of products are
            b_scale = x_scale * scale
            b = np.rint(self._array(node.input[2]) / b_scale).astype(np.int32)
            node.input[2] = self._meaning(node.input[2], b, b_scale.astype(np.float32), 0)
        self._nodes.append(node)
        if not is_conv:
            return
        name, path = node.output[0], self._paths[node.output[0]]
        end = path[-1].output[0]
        node.output[0] += ".sums"
        self._quantize(node.output[0], name + ".bytes", end)
        self._bytes[name] = name + ".bytes"
        if len(path) == 1:
            self._dequantize(name)

    def _write_step(self, node: Any) -> None:
        """Write a pooling or a mask of bytes; in place of a ReLU, dequantize its bytes."""
        source, name = self._bytes[node.input[0]], node.output[0]
        if node.op_type == "Relu":
            self._bytes[name] = source
            self._dequantize(name)
            return
        self._bytes[name] = name + ".bytes"
        if node.op_type == "MaxPool":
            node.input[0], node.output[0] = source, self._bytes[name]
            self._nodes.append(node)
        else:
            mask, zero = self._mask(node), self._constant("zero.bytes", np.uint8(0))
            assert mask is not None, "a step is a pooling, a mask or a ReLU"
            self._add("Where", [mask, source, zero], self._bytes[name])

    def _write_table(self, node: Any) -> None:
        """Write an embedding: rows of bytes times the scales of rows."""
        q, scale = to_int8(self._array(node.input[0]), 0)
        table, index, name = node.input[0], node.input[1], node.output[0]
        rows = self._constant(table + ".bytes", q)
        scales = self._constant(table + ".scales", scale[:, None])
        for source, part in ((rows, ".row"), (scales, ".scale")):
            self._add("Gather", [source, index], name + part, axis=0)
        self._add("Cast", [name + ".row"], name + ".float", to=1)
        self._add("Mul", [name + ".float", name + ".scale"], name)

    def _rounded(self, name: str) -> str:
        """Return the name of an activation rounded to its grid; write its nodes if not yet done."""
        if name in self._bytes:
            return name if name in self._steps else name + ".rounded"
        self._bytes[name] = name + ".bytes"
        self._quantize(name, name + ".bytes", name)
        self._dequantize(name, name + ".rounded")
        return name + ".rounded"

    def _grid(self, name: str) -> list[str]:
        grid = self.grids[name]
        scale = self._constant(name + ".scale", np.float32(grid.scale))
        return [scale, self._constant(name + ".zero", np.uint8(grid.zero))]

    def _quantize(self, source: str, name: str, of: str) -> None:
        self._add("QuantizeLinear", [source, *self._grid(of)], name)

    def _dequantize(self, name: str, out: str | None = None) -> None:
        self._add("DequantizeLinear", [self._bytes[name], *self._grid(name)], out or name)

    def _meaning(self, name: str, q: np.ndarray, scale: np.ndarray, axis: int) -> str:
        """Return the name of a dequantized constant: integers times the scales of an axis."""
        inputs = [self._constant(f"{name}.bytes", q), self._constant(f"{name}.scales", scale)]
        self._add("DequantizeLinear", inputs, f"{name}.rounded", axis=axis)
        return f"{name}.rounded"

    def _array(self, name: str) -> np.ndarray:
        from onnx import numpy_helper

        return np.asarray(numpy_helper.to_array(self._weights[name]))

    def _constant(self, name: str, value: Any) -> str:
        from onnx import numpy_helper

        if name not in self._made:
            self._made[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def _add(self, kind: str, inputs: Sequence[str], output: str, **options: Any) -> None:
        from onnx import helper

        self._nodes.append(helper.make_node(kind, inputs, [output], **options))


def _is_inside(node: Any, modules: Sequence[str]) -> bool:
    found = [p.value for p in node.metadata_props if p.key == _SCOPES]
    scopes = ast.literal_eval(found[0]) if found else [node.name]
    return any(s == m or s.startswith(f"{m}.") for s in scopes for m in modules)

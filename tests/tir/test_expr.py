from tvm import tirx

from tvm_rnn.tir.expr import TirExpr

FORWARD = {"add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "and", "or", "xor", "invert", "lshift", "rshift"}
OPERATORS = FORWARD | {"radd", "rsub", "rmul", "rtruediv", "lt", "le", "gt", "ge"}


def members(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if name == "astype" or (name.startswith("__") and name[2:-2] in OPERATORS)}


def test_tvm_s_variables_are_expressions() -> None:
    variable = tirx.Var("x", "int32")
    assert [name for name in members(TirExpr) if not hasattr(variable, name)] == []


def test_tvm_s_buffers_are_buffers() -> None:
    buffer = tirx.decl_buffer((4,), "float32")
    assert all(hasattr(buffer, name) for name in ("dtype", "data", "ptr_to", "__getitem__"))

"""warn: the place of a warning is the caller's, through frames of torch and of this package."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("through", [(), ("cell.py",), ("cell.py", "nn.py", "cell.py")])
def test_the_place_is_the_callers(through: tuple[str, ...]) -> None:
    import torch

    from tvm_rnn.torch_layer import warn

    call = warn.warn
    for name in through:
        for file in (Path(warn.__file__).with_name(name), Path(torch.__file__).with_name("of_torchs.py")):
            names = {"inner": call}
            exec(compile("def outer(text): inner(text)", str(file), "exec"), names)
            call = names["outer"]
    with pytest.warns(UserWarning, match="^told$") as told:
        call("told")
    assert [item.filename for item in told] == [__file__]

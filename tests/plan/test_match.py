"""When does the plan of one shape serve another?"""

from dataclasses import replace

from lowtide.plan.match import shrinks
from tests.solve.builders import chain


def test_the_same_step_with_smaller_sizes_shrinks() -> None:
    large, small = chain(4, bytes=100), chain(4, bytes=60)
    assert shrinks(large, large)
    assert shrinks(small, large)
    assert not shrinks(large, small)


def test_another_step_does_not() -> None:
    graph = chain(4)
    assert not shrinks(chain(3), graph)
    (first, *rest) = graph.ops
    assert not shrinks(graph.with_ops([replace(first, target="aten.cos.default"), *rest]), graph)
    one_larger = tuple(
        replace(v, bytes=101) if v.name == "f2" else replace(v, bytes=v.bytes // 2)
        for v in graph.values
    )
    assert not shrinks(replace(graph, values=one_larger), graph)

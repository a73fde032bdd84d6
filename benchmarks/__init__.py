"""Studies: programs that decide, by measuring, what the README claims of this package.

One folder a theme, and in each a page ``README.md`` that tells every study of it: question, setting,
result, figure, what would change it. A study is a module, run from the root of the checkout::

    python -m benchmarks.mixing.which_sampler --quick

It stores what it measured in the folder ``results`` beside it, under its own name. What a program
needs to be a study is in :mod:`benchmarks._shared.study`; begin reading there.
"""

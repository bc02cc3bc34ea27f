"""The judges: each looks for one kind of fault and gives an opinion, or None.

To add one, write the function `(View) -> Opinion | None` and list it in `table`.
"""

"""``gatefuse loadtest``: puts a server under load, checks every answer, and reports.

``plan`` and ``schedule`` say what is sent and when, ``sources`` and ``checks`` what is sent and
what has to come back, ``stats`` what the measurements mean: they are pure. ``runner`` sends, in
processes of its own (``process``), which ``fleet`` leads; ``table`` and ``html`` show the result;
``command`` is the command line.
"""

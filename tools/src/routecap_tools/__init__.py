"""Tools beside routecap: the command, `doctor` for captured files, `conform` for engines, `metrics`
for Prometheus, `page` and `plot` for people.

    command      what `routecap` in a shell does
    conform      judges whether an engine's capture is right
    doctor       finds what is wrong in captured routing
    metrics      serves the load of the experts, and what was lost
    page, plot   one page of HTML; drawings on axes of matplotlib

Each is a module to be imported by its name; none needs an engine.
"""

"""Arguments as users give them, checked before anything else looks at them.

A wrong argument is an error that names the value, the cause and the nearest right spelling.

Order: `keywords` (unknown and missing keyword arguments), `synonyms` (the names that other libraries use),
`command_line` (options of commands and scripts), `values` (`KEY=VALUE` texts, options, numbers), `places` (files that
are written), `environment` (its variables). Texts of clusters are read by `cluster.one_line`, of parallelisms by
`search.space.one_line`.
"""

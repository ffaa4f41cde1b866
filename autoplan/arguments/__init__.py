"""Arguments as users give them, checked.

`keywords` names the nearest known argument of an unknown one; `synonyms` knows what other libraries call the options;
`values` reads `KEY=VALUE` texts; `command_line` turns a wrong command into one error with its remedy.
"""

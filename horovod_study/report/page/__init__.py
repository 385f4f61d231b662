"""The page a study ends in (html), its tables, which are those for print too, and the check of both."""

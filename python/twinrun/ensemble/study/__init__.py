"""What a study is and what it wrote: its plan (study, design), its folder (record, tasks), results, imports
and exports.
"""

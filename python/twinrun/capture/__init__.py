"""What a program writes while it runs, and what is done with it afterwards: `Run` (run), records and packing (records)."""

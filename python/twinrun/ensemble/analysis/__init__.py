"""What the times of a study say: one module an analysis, each with a table, a picture, a sentence and its tests."""

"""What can be compared: histories, files, folders and arrays, as steps, ranks and fields.

    opening         opens a path, or arrays, as a subject
    subject         one side of a comparison: its places (step, rank), and the fields of each
    histories       captured histories as subjects
    files           files of other programs, or a folder of them, as subjects
    in_memory       arrays of a program as subjects
    fields          one field of a place: its layout, where its elements are, its metadata
    metadata        checks whether metadata is as new as its data
    arrays          arrays of a program, on the CPU or a GPU, as the core reads them
    containers      dictionaries, lists, models and tables as named arrays
    entries         arrays of a program as the core captures and digests them
    order           elements in one logical order, whatever the storage order
    parts           fields that two runs divide over ranks differently
    particles       fields whose rows have IDs
    provenance      the conditions of a run: build, machine, environment
    index           writes metadata of files that have none
    sketch          digests of arrays in memory, without files
    verify          checks the checksums of histories and of files with metadata

No module here depends on the code that compares two runs.
"""

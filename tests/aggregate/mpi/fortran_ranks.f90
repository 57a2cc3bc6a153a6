! The module twinrun_aggregate. MPI itself is called by tests/mpi/fortran_world.c: not every MPI brings a module for this compiler.
program fortran_ranks
  use, intrinsic :: iso_c_binding, only: c_int, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  use twinrun_aggregate
  implicit none
  ! As mpi_f08 has it.
  type, bind(c) :: comm_t
    integer(c_int) :: mpi_val
  end type
  interface
    subroutine world_begin(comm, rank, ranks) bind(c)
      import :: c_int
      integer(c_int), intent(out) :: comm, rank, ranks
    end subroutine
    subroutine world_end() bind(c)
    end subroutine
  end interface
  integer, parameter :: nx = 7, ny = 5
  integer(c_int) :: comm, rank, ranks
  character(4096) :: folder
  character(:), allocatable :: message
  integer :: stat, unit
  type(twr_aggregate_t) :: aggregate

  call get_command_argument(2, folder)
  call twr_aggregate_create(aggregate, 0, stat=stat, errmsg=message)
  if (stat == 0 .or. index(message, "initialised") == 0) error stop "before MPI_Init"
  call world_begin(comm, rank, ranks)
  call blocks_with_halo()
  call kinds_and_ranks()
  call wrong()
  call world_end()
  if (rank == 0) print "(a)", "done"

contains

  ! Columns of a global array nx x (ny * ranks), each rank's with a halo of one item on all sides.
  subroutine blocks_with_halo()
    real(real64), target :: own(0:nx + 1, 0:ny + 1), again(0:nx + 1, 0:ny + 1)
    real(real64), allocatable :: all(:, :)
    character(:), allocatable :: path
    type(twr_block_t) :: block
    integer :: i, j, step
    logical :: done
    path = trim(folder) // "/blocks"
    call twr_aggregate_create(aggregate, comm_t(comm), "buffers = 3; sync = false;")
    block = twr_block(8, [nx, ny * int(ranks)], [1, ny * int(rank) + 1], [nx, ny], [nx + 2, ny + 2], [2, 2])
    call twr_aggregate_declare(aggregate, [block])
    do step = 1, 3
      own = -1
      do j = 1, ny
        own(1:nx, j) = [(step * 1e6_real64 + 1000 * (ny * rank + j) + i, i=1, nx)]
      end do
      call twr_aggregate_write_begin(aggregate, path, [twr_data(own)])
      own = -2
      call twr_aggregate_wait(aggregate)
      call twr_aggregate_test(aggregate, done)
      if (.not. done) error stop "a write that was waited for is under way"
      again = -3
      call twr_aggregate_read(aggregate, path, [twr_data(again)])
      do j = 1, ny
        do i = 1, nx
          if (nint(again(i, j)) /= step * 1000000 + 1000 * (ny * rank + j) + i) error stop "a read"
        end do
      end do
      if (nint(again(0, 0)) /= -3 .or. nint(again(nx + 1, ny + 1)) /= -3) error stop "the halo"
    end do
    if (index(twr_aggregate_report(aggregate), """buffers"":3") == 0) error stop "the report"
    call twr_aggregate_free(aggregate)
    call twr_aggregate_free(aggregate)
    if (rank == 0) then
      allocate(all(nx, ny * ranks))
      open (newunit=unit, file=path, access="stream", form="unformatted", action="read")
      read (unit) all
      close (unit)
      do j = 1, ny * ranks
        do i = 1, nx
          if (nint(all(i, j)) /= 3000000 + 1000 * j + i) error stop "the file"
        end do
      end do
    end if
  end subroutine

  ! Arrays of any type and rank in one file, also scalars, and lengths of 64 bits.
  subroutine kinds_and_ranks()
    integer(int32), target :: ids(4), ids_again(4)
    real(real32), target :: field(2, 3, 4), field_again(2, 3, 4)
    character(5), target :: word, word_again
    complex(real64), target :: one, one_again
    type(c_ptr) :: data(4), again(4)
    integer :: file, files, own, of
    call twr_aggregate_create(aggregate, comm, "files = rank")
    call twr_aggregate_file(aggregate, file, files, own, of)
    if (file /= rank .or. files /= ranks .or. own /= 0 .or. of /= 1) error stop "its file"
    call twr_aggregate_declare(aggregate, [twr_variable(4, 4_int64, 0_int64), twr_variable(4, 24, 16), twr_variable(1, 5, 112), &
        twr_variable(16, 1, 120)])
    ids = [1, 2, 3, int(rank)]
    field = reshape([(real(file), file=1, 24)], [2, 3, 4])
    word = "words"
    one = (1.0_real64, -2.0_real64)
    data = [twr_data(ids), twr_data(field), twr_data(word), twr_data(one)]
    again = [twr_data(ids_again), twr_data(field_again), twr_data(word_again), twr_data(one_again)]
    call twr_aggregate_write(aggregate, trim(folder) // "/kinds", data)
    call twr_aggregate_read(aggregate, trim(folder) // "/kinds", again)
    if (any(ids /= ids_again) .or. any(abs(field - field_again) > 0) .or. word /= word_again .or. abs(one - one_again) > 0) &
        error stop "what was read"
    call twr_aggregate_declare_records(aggregate, [4, 4], 4_int64, twr_records)
    call twr_aggregate_write(aggregate, trim(folder) // "/records", [twr_data(ids), twr_data(ids_again)], stat)
    if (stat /= 0) error stop "records"
    call twr_aggregate_free(aggregate)
  end subroutine

  ! Errors of the last rank are errors of all, and the aggregate can be used again.
  subroutine wrong()
    integer(int32), target :: numbers(10)
    type(twr_block_t) :: block
    character(:), allocatable :: settings
    type(c_ptr) :: data(1)
    settings = "buffers = 2"
    if (rank == ranks - 1) settings = "bufers = 2"
    call twr_aggregate_create(aggregate, comm, settings, stat, message)
    if (stat == 0 .or. index(message, "bufers") == 0) error stop "a wrong setting"
    call twr_aggregate_create(aggregate, comm)
    block = twr_block(4, [10, int(ranks)], [1, int(rank) + 1], [10, 1])
    if (rank == ranks - 1) block = twr_block(4, [10, int(ranks)], [1, int(rank) + 1], [10])
    call twr_aggregate_declare(aggregate, [block], stat, message)
    if (stat == 0 .or. index(message, "one number a dimension") == 0) error stop "a wrong block"
    call twr_aggregate_declare(aggregate, [twr_variable(4, 5, 20 * int(rank))])
    numbers = 7
    ! Every second item: there is no such array in memory.
    data = [twr_data(numbers(1:5))]
    if (rank == ranks - 1) data = [twr_data(numbers(::2))]
    call twr_aggregate_write(aggregate, trim(folder) // "/wrong", data, stat, message)
    if (stat == 0 .or. index(message, "NULL") == 0) error stop "an array that is not contiguous"
    call twr_aggregate_write(aggregate, trim(folder) // "/wrong", [twr_data(numbers(2:6))])
    call twr_aggregate_free(aggregate)
  end subroutine

end program

! The module twinrun_mpi. MPI itself is called by fortran_world.c: not every MPI brings a module for this compiler.
program fortran_ranks
  use, intrinsic :: iso_c_binding, only: c_int
  use, intrinsic :: iso_fortran_env, only: int64, real64
  use twinrun
  use twinrun_mpi
  implicit none
  interface
    subroutine world_begin(comm, rank, ranks) bind(c)
      import :: c_int
      integer(c_int), intent(out) :: comm, rank, ranks
    end subroutine
    subroutine world_end() bind(c)
    end subroutine
  end interface
  integer(c_int) :: comm, rank, ranks
  integer :: stat
  integer(int64) :: step, newest
  character(4096) :: path
  character(:), allocatable :: message
  real(real64), target, allocatable :: x(:, :)
  type(twr_run_t) :: run
  type(twr_settings_t) :: settings

  call get_command_argument(1, path)
  call twr_open_mpi(run, trim(path), 0, stat=stat, errmsg=message)
  if (stat /= twr_error_invalid_argument .or. index(message, "MPI_Init") == 0) error stop "before MPI_Init"

  call world_begin(comm, rank, ranks)
  call twr_set(settings, "no such setting", 1)
  call twr_open_mpi(run, trim(path), int(comm), settings, stat, message)
  if (stat /= twr_error_invalid_argument .or. index(message, "no such setting") == 0) error stop "a wrong setting"

  ! A column a rank.
  allocate(x(1000, 2))
  call twr_open_mpi(run, trim(path), int(comm))
  call twr_protect(run, "x", x, global_shape=[1000_int64, 2_int64 * ranks], global_offset=[0_int64, 2_int64 * rank])
  do step = 1, 3
    x = 10 * real(step, real64) + rank
    call twr_capture(run, step)
  end do
  call twr_wait(run)
  call twr_latest(run, newest)
  if (newest /= 3) error stop "the newest step"
  call twr_restore(run, 2_int64)
  if (any(abs(x - 20 - rank) > 0)) error stop "another array"
  call twr_close(run)
  call world_end()
  if (rank == 0) print "(a)", "done"
end program

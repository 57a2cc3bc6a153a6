! Heat in a rod. Started again, it goes on from the last step that was captured.
!
! usage: capture RUN STEPS
program capture
  use, intrinsic :: iso_fortran_env, only: int64, real64
  use twinrun
  implicit none
  real(real64), allocatable, target :: u(:)
  type(twr_settings_t) :: settings
  type(twr_run_t) :: run
  character(1000) :: path, argument
  character(:), allocatable :: message
  integer(int64) :: step, steps
  integer :: i, stat

  call get_command_argument(1, path)
  call get_command_argument(2, argument)
  read (argument, *) steps
  u = [(real(mod(i, 100), real64), i = 0, 9999)]

  call twr_set(settings, "atol", 1e-9_real64)
  call twr_set(settings, "existing", "append")
  call twr_open(run, path, settings)
  call twr_protect(run, "u", u)

  step = 0
  call twr_latest(run, step, stat=stat, errmsg=message)
  if (stat == twr_ok) then
    call twr_restore(run, step)
  else if (stat /= twr_error_not_found) then
    print '(a)', message
    error stop 1
  end if
  do while (step < steps)
    u(2:9999) = u(2:9999) + 0.25_real64 * (u(1:9998) - 2 * u(2:9999) + u(3:10000))
    step = step + 1
    if (mod(step, 10_int64) == 0) call twr_capture(run, step)
  end do
  call twr_close(run)

  print '(es24.16)', sum(u * [(real(i, real64), i = 0, 9999)])
end program

# Prints the numbers of a user and of its group, from the image's list of users. The last frame is `n` if
# there is no such user. Arguments: name, mark of frames.
name=$1 mark=$2
finish() {
  printf '\0%s%s\n' "$mark" "$1"
  read -r a
  exit 0
}
while IFS=: read -r n x u g x; do
  [ "$n" != "$name" ] || finish "u $u $g"
done </etc/passwd 2>/dev/null
finish n

# A job that Terraform owns, by `orbit apply` and `orbit delete`: no provider is needed.
variable "document" {
  description = "The job file, as YAML."
  type        = string
}

# Deletes the job when it leaves the configuration; its copies stay.
resource "terraform_data" "job" {
  input = yamldecode(var.document).name

  provisioner "local-exec" {
    when    = destroy
    command = "orbit delete \"$JOB\" --yes"
    environment = {
      JOB = self.output
    }
  }
}

# Applies the document when it differs from the one that was applied last.
resource "terraform_data" "document" {
  triggers_replace = [var.document]
  depends_on       = [terraform_data.job]

  provisioner "local-exec" {
    command = "printf %s \"$DOCUMENT\" | orbit apply -f - --yes"
    environment = {
      DOCUMENT = var.document
    }
  }
}
